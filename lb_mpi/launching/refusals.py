"""What to do about a host that can't be reached, by what ssh or the shell there has said."""

from __future__ import annotations

import re
from collections.abc import Iterable

# The first that is found is right: a changed key ends with the same line as one that isn't known.
_ADVICE = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "Its key is not the one that is known here. If you know why, `ssh-keygen -R {host}`, then `ssh {host}` by hand",
    ),
    (
        r"Host key verification failed",
        "Its key is not known here: `ssh {host}` once by hand, and accept the key",
    ),
    (
        r"Permission denied",
        "It lets no key of yours in: `ssh-copy-id {host}`; a key with a passphrase needs ssh-agent",
    ),
    (
        r"Could not resolve hostname",
        "It has no address: correct the host list, or add the name to DNS or /etc/hosts",
    ),
    (r"Connection refused", "It is on, but no ssh server listens there"),
    (
        r"timed out|No route to host|Network is unreachable|Connection (?:closed|reset)",
        "See whether it is on, and in reach: `ssh {host}`",
    ),
    (
        r"\bcd: ",
        "The folder {folder} must be there under the same path: on a shared file system, or as a copy",
    ),
    (
        r"not found|No such file or directory|can't find '__main__'",
        "Python and lb_mpi must be there under the same path as here: on a shared file system, or installed alike",
    ),
)


def advice(said: Iterable[str], host: str, folder: str) -> str:
    """Return a sentence, without its full stop, for what was `said` (lines) instead of an answer; empty if nothing is known.

    `folder` is the one that the program is to run in.
    """
    text = "\n".join(said)
    for pattern, words in _ADVICE:
        if re.search(pattern, text):
            return words.format(host=host, folder=folder)
    return ""
