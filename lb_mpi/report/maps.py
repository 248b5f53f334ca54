"""Maps of who computed what: of each place of the domain a rank records its part, and who has most gets it.   (pure)"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lb_mpi.record.known import MAP
from lb_mpi.report.run import Floats, Run

NOBODY = -1
Ints = NDArray[np.int64]


def shares(rows: Ints, columns: Ints, domain: tuple[int, int]) -> Floats:
    """Return the part of each place of a map that points of a grid fill, from 0 to 1.

    rows, columns : (n,) of the points; domain : rows and columns of the whole grid.  A map has MAP of either at most.
    """
    return parts(np.bincount(places(rows, columns, domain), minlength=size(domain)), domain)


def size(domain: tuple[int, int]) -> int:
    """Count the places of the map of a grid."""
    height, width = _shape(domain)
    return height * width


def places(rows: Ints, columns: Ints, domain: tuple[int, int]) -> Ints:
    """(n,) the place of each point, counted row by row; see `shares`."""
    height, width = _shape(domain)
    return rows * height // domain[0] * width + columns * width // domain[1]


def parts(counts: Ints | Floats, domain: tuple[int, int]) -> Floats:
    """(h, w) the part of each place that is filled, from (h * w,) how many of its points are."""
    height, width = _shape(domain)
    whole = np.outer(_lengths(domain[0], height), _lengths(domain[1], width))
    return np.asarray(counts.reshape(height, width) / whole)


def _shape(domain: tuple[int, int]) -> tuple[int, int]:
    fraction = min(1.0, MAP / max(domain))
    height, width = (max(1, round(fraction * length)) for length in domain)
    return height, width


def owners(run: Run) -> Ints:
    """(h, w) the rank that computed most of each place, NOBODY where none did; (0, 0) where there is no map."""
    mapped = [one for one in run.ranks if one.known.map.size]
    shapes = {one.known.map.shape for one in mapped}
    if len(shapes) != 1:
        return np.zeros((0, 0), dtype=np.int64)
    most = np.zeros(shapes.pop(), dtype=np.uint8)
    found = np.full(most.shape, NOBODY, dtype=np.int64)
    for one in mapped:
        more = one.known.map > most
        found[more], most[more] = one.about.rank, one.known.map[more]
    return found


def layout_of(run: Run) -> str:
    """In words, how vertices without coordinates were laid out; "" for a domain that has some."""
    told = (one.known.settings.get("map", {}).get("layout", "") for one in run.ranks)
    return next((str(words) for words in told if words), "")


def _lengths(length: int, places: int) -> Ints:
    """(places,) how many of 0..length-1 fall in each."""
    return np.bincount(np.arange(length) * places // length, minlength=places)
