"""Which part of a maze one rank has visited, as a small picture: an estimate from samples of the cells it marks.   (pure)"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SAMPLES = 16  # of each place of the picture, when all its cells are visited by one rank


class Visits(NamedTuple):
    """Samples of the cells that one rank marks; the kernel counts them."""

    counts: npt.NDArray[np.int64]  # (side, side) samples in each place of the picture; (0, 0): none are taken
    each: int  # every so manieth cell that a call of the kernel marks is a sample, beginning with the first


def room(dim: int, side: int) -> Visits:
    """Make room for a picture of at most side x side places of a maze of dim x dim cells; 0: none."""
    side = min(side, dim)
    cells = (dim / side) ** 2 if side else 1.0
    return Visits(np.zeros((side, side), np.int64), max(1, int(cells) // SAMPLES))


def parts(visits: Visits, dim: int) -> npt.NDArray[np.float64]:
    """(side, side) the part of the cells in each place that was visited, 0 to 1, of a maze of dim x dim cells."""
    cells = (dim / max(1, len(visits.counts))) ** 2
    found: npt.NDArray[np.float64] = np.minimum(visits.counts * (visits.each / cells), 1.0)
    return found
