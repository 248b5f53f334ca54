"""Show how a run goes that is under way, from its records: a table on a terminal, elsewhere a line every ten seconds.

`report --follow` does it; `python -m lb_mpi.commands.follow FOLDER` does it for who starts it, until standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lb_mpi.commands.records import gather
from lb_mpi.report.live import Look, View, look, step, view, words
from lb_mpi.report.run import Run

LOOK_S = 1.0
LINE_S = 10.0  # where there is no terminal
SILENT_S = 60.0  # after which a run that writes nothing is taken for dead
MOST_LINES = 30  # of a table


def follow(read: Callable[[], Run], wait: Callable[[float], bool] | None = None) -> None:
    """Show it until the run is over, or has written nothing for `SILENT_S`; `read` raises ValueError before it begins.

    `wait` : waits so many seconds between two looks, and returns whether to stop; None: nothing stops it.
    """
    console = Console(stderr=True)
    before: Look | None = None
    told = changed = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            run = _try(read)
            now = time.monotonic()
            if run is not None:
                seen = look(run)
                fresh = before is None or seen.until_s.tolist() != before.until_s.tolist()
                changed = now if fresh else changed
                over = len(run.ranks) == run.size and all(one.ended for one in run.ranks)
                if fresh and console.is_terminal:
                    live.update(table(view(before, seen)), refresh=True)
                    before = seen
                elif not console.is_terminal and (over or now >= told + LINE_S):
                    sys.stderr.write(words(view(before, seen)) + "\n")
                    sys.stderr.flush()
                    told, before = now, seen
                if over:
                    return
            if now > changed + SILENT_S:
                console.print(f"no news for {SILENT_S:g} s: it has not begun to record, or has died")
                return
            if wait is None:
                time.sleep(LOOK_S)
            elif wait(LOOK_S):
                return


def wait_for_eof(seconds: float) -> bool:
    """Wait until standard input ends, `seconds` at most; return whether it has."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1024)


def table(shown: View) -> Table:
    """Make a table of it."""
    left = f", about {shown.left_s:,.0f} s left" if shown.left_s == shown.left_s else ""
    made = Table(title=f"{shown.seconds:,.0f} s{step(shown)}{left}", title_justify="left", box=None)
    made.add_column("")
    for name in (shown.unit, "a second", "busy", "balances"):
        made.add_column(name, justify="right")
    lines = (
        sorted(shown.lines, key=lambda line: line.busy)[:MOST_LINES] if len(shown.lines) > MOST_LINES else shown.lines
    )
    for line in [*lines, shown.total]:
        busy = f"{line.busy:.0%}" if line.busy == line.busy else "-"
        made.add_row(line.name, f"{line.done:,.0f}", f"{line.per_s:,.3g}", busy, f"{line.balances:,}")
    return made


def _try(read: Callable[[], Run]) -> Run | None:
    """A record that is not there yet, or is being begun, is looked for again."""
    try:
        return read()
    except (ValueError, FileNotFoundError):
        return None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        follow(lambda: gather(Path(sys.argv[1])), wait_for_eof)
