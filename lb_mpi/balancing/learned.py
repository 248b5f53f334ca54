"""What one rank keeps of a round: its loans, and what it has learned.   (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lb_mpi.balancing.rowsets import Rowset
from lb_mpi.graph import Floats


class Timed(NamedTuple):
    """Rows of this rank that were computed together."""

    rows: Rowset
    by: int  # rank
    ticks: float  # on the clock of work of that rank; NaN: not to be relied upon
    helped: bool  # lent beyond the plan


class Loan(NamedTuple):
    """Rows of this rank that another has."""

    rows: Rowset
    helps: bool  # beyond the plan


@dataclass
class Learned:
    """What a round has told one rank; see `lb_mpi.balancing.course`."""

    sizes: Floats | None = None  # (n,) > 0 what its rows cost, in any unit, as known before; None: all the same
    timed: list[Timed] = field(default_factory=list)
    planned_ticks: float = 0.0  # that this rank took for rows borrowed by plan
    help_ticks: float = 0.0  # likewise, beyond the plan
    late_ticks: float = 0.0  # likewise, after it had told: they are counted in its next round
    handling_s: float = 0.0  # of a block beside computing it, in the round before
    rows_lent: int = 0
    told: bool = False  # nothing but late_ticks changes any more
    failed: bool = False  # this rank, before it told, or a borrower, so that rows of this rank are lost
    home_s: float = 0.0  # seconds for rows at home
    home_size: float = 0.0  # and how large these were; see `lb_mpi.balancing.round`
