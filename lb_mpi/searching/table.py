"""The table of drafting, as data: a rank's reaction to each event, on the ring and with walking drafts.   (pure)

`drafting` and `walking` show their rows of it in their docstrings, and `walking` derives from it what may arrive in which
state.  The tests check every observed step against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One rule of drafting."""

    route: str  # of the drafts: "ring" or "random"
    state: str  # of the rank; "any": all states
    event: str  # the message that arrives, or in brackets the condition at the end of a turn
    does: str
    then: str  # the next state; "same": unchanged


TABLE = (
    Row("ring", "IDLE", "(pause is over)", "DRAFTING(me, seq + 1, none, 0) to the successor", "WAIT_FOR_ACK"),
    Row("ring", "WAIT_FOR_ACK", "own DRAFTING, none", "a growing, jittered pause begins", "IDLE"),
    Row("ring", "WAIT_FOR_ACK", "own DRAFTING, pid", "ADMISSION to pid", "READY_FOR_ACCEPT"),
    Row("ring", "READY_FOR_ACCEPT", "WORK", "absorb it", "BUSY"),
    Row("ring", "READY_FOR_ACCEPT", "NOWORK", "draft again at once", "IDLE"),
    Row(
        "ring",
        "BUSY",
        "another's DRAFTING",
        "Q > load, Q > J: REJECT to pid, write (me, Q) in it",
        "WAIT_FOR_ADMISSION",
    ),
    Row("ring", "BUSY", "another's DRAFTING", "otherwise: pass it on unchanged", "BUSY"),
    Row("ring", "BUSY", "(no work left)", "", "IDLE"),
    Row("ring", "WAIT_FOR_ADMISSION", "REJECT", "", "BUSY"),
    Row("ring", "WAIT_FOR_ADMISSION", "ADMISSION", "", "READY_FOR_SPLIT"),
    Row("ring", "READY_FOR_SPLIT", "(messages served)", "split: WORK to the drafter, or NOWORK", "BUSY"),
    Row("ring", "any but BUSY", "another's DRAFTING", "pass it on unchanged", "same"),
    Row(
        "random", "IDLE", "(no walk of mine is out)", "DRAFTING(me, seq + 1, left = reach) to a random rank", "WALKING"
    ),
    Row("random", "IDLE", "(an earlier one is out)", "that walk counts as this one", "WALKING"),
    Row("random", "WALKING", "own DRAFTING", "STAND(me) to each neighbour that holds none of mine", "ASLEEP"),
    Row("random", "BUSY", "own DRAFTING", "drop it", "BUSY"),
    Row("random", "any", "another's DRAFTING", "queue it until the end of the turn", "same"),
    Row("random", "any", "STAND", "keep it until it is served", "same"),
    Row("random", "any", "OWNED", "take it in hand", "BUSY"),
    Row("random", "WALKING", "WORK", "absorb it", "BUSY"),
    Row("random", "ASLEEP", "WORK", "absorb it", "BUSY"),
    Row("random", "BUSY", "WORK", "keep it, to be absorbed when there is none in hand", "BUSY"),
    Row(
        "random",
        "BUSY",
        "(drafts, and work for them)",
        "WORK to walks, then to those that stand, from one split",
        "BUSY",
    ),
    Row("random", "any", "(a walk wasn't served)", "left - 1 > 0: on to a random rank, otherwise home", "same"),
    Row("random", "BUSY", "(no work left)", "", "IDLE"),
)


def draw(route: str) -> str:
    """Draw the rows of one route for a docstring."""
    head = ("state", "arrives", "does", "next state")
    rows: Sequence[Sequence[str]] = [head, *(row[1:] for row in TABLE if row.route == route)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
