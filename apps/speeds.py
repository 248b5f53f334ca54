"""Speeds that change while a program runs: how they are written, and the bound that they allow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lb_mpi.checks import integer, number
from lb_mpi.emulate import Change, Varying


def change_of(text: str) -> Change:
    """Parse "RANK:FROM_S:TO_S:FACTOR"; ValueError unless 0 <= FROM_S < TO_S and 0 < FACTOR <= 1."""
    parts = text.split(":")
    if len(parts) != 4:
        raise ValueError(f"a change of speed {text!r}: expected RANK:FROM_S:TO_S:FACTOR, as in 1:10:20:0.33")
    try:
        rank, from_s, to_s, factor = int(parts[0]), *map(float, parts[1:])
    except ValueError:
        raise ValueError(f"a change of speed {text!r}: expected four numbers, as in 1:10:20:0.33") from None
    begin = number("FROM_S", from_s, least=0.0)
    return Change(
        integer("RANK", rank, 0), begin, number("TO_S", to_s, above=begin), number("FACTOR", factor, above=0.0, most=1.0)
    )


def seconds_for(work: float, speeds: Sequence[Varying]) -> float:
    """The time after which `work` >= 0 is done if it can be divided freely: no run can end sooner."""
    moments = sorted({0.0, *(moment for one in speeds for change in one.changes for moment in change[1:3])})
    for begin, end in itertools.pairwise(moments):
        power = sum(one.at(begin) for one in speeds)
        if work <= power * (end - begin):
            return begin + work / power
        work -= power * (end - begin)
    return moments[-1] + work / sum(one.at(moments[-1]) for one in speeds)
