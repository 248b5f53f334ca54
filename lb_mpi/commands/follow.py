"""Show how a run goes that is under way, from its records: a table on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lb_mpi.recording.live import Look, View, look, view, words
from lb_mpi.recording.run import Run

LOOK_S = 1.0
LINE_S = 10.0  # where there is no terminal
SILENT_S = 60.0  # after which a run that writes nothing is taken for dead
MOST_LINES = 30  # of a table


def follow(read: Callable[[], Run]) -> None:
    """Show it until the run is over, or has written nothing for `SILENT_S`; `read` raises ValueError before it begins."""
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
            time.sleep(LOOK_S)


def table(shown: View) -> Table:
    """Make a table of it."""
    left = f", about {shown.left_s:,.0f} s left" if shown.left_s == shown.left_s else ""
    made = Table(title=f"{shown.seconds:,.0f} s{left}", title_justify="left", box=None)
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
