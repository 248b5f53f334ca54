"""A limit of the size of files, in place of a full disk."""

import contextlib
import resource


@contextlib.contextmanager
def largest_file(n_bytes, *, here=True):
    """No file of this process gets larger than `n_bytes`; `here`: on this rank."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
