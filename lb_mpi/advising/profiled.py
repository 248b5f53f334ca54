"""A program without lb_mpi, as `profile` has seen it: what perfect and what realistic balancing would gain.   (pure)

Perfect: the same useful work by speed, and nobody waits (`Profile.balanced_s`).  Realistic: the useful work of each rank as
rows, in as many calls as the program waits in its busiest line, through `lb_mpi.balancing.simulate`; it has to be measured
before it is balanced, and messages take what they took.
"""

from __future__ import annotations

import numpy as np

from lb_mpi.advising.advice import Advice, Line, Progress, over_seeds
from lb_mpi.balancing.simulate import Cluster
from lb_mpi.graph import mesh, most_square_mesh
from lb_mpi.profiling.profile import Profile

NOISE, ROWS = 0.05, 64  # of a block's time; of a rank on the virtual clock
LEAST, MOST = 4, 50  # calls that are played; the rest goes on as the last half of them


def advise(profile: Profile, progress: Progress) -> Advice:
    """Advise on a program of which only a profile is known; ValueError for one that isn't complete."""
    if len(profile.ranks) < 2:
        raise ValueError("the profile of one rank: expected two or more, to balance between")
    if [rank.rank for rank in profile.ranks] != list(range(len(profile.ranks))):
        raise ValueError("the profile of some ranks only: expected all of them")
    progress("profile")
    n = _calls(profile)
    talk_s = float(np.mean([rank.communication_s for rank in profile.ranks]))
    predicted_s, spread_s = over_seeds(lambda seed: _play(profile, n, seed) + talk_s)
    lines = [
        Line("as profiled", profile.seconds, 0.0, profile.seconds),
        Line("balanced as lb_mpi does it", predicted_s, spread_s, change="rows = balancer.map_rows(function, rows)"),
        Line("perfectly balanced, no rank waits", profile.balanced_s, 0.0),
    ]
    notes = [
        f"balanced: if the work can be lent row by row, in {n:,} calls, each as unbalanced as all of them together",
        f"{talk_s:.3f} s of messages remain; whatever else a rank does outside of MPI, as reading a file, counts as work",
    ]
    if len(set(profile.speeds)) == 1:
        notes.append("all speeds are assumed to be equal: pass those of the ranks to profile --speeds")
    if not all(rank.complete for rank in profile.ranks):
        notes.append("the program did not end by itself: this covers what the ranks had reported by then")
    return Advice("profile", lines, notes)


def _calls(profile: Profile) -> int:
    """Count how often a rank is at the line where the program waits most."""
    lines = [line for line in profile.lines() if line.waiting_s > 0.0]
    return max(1, round(lines[0].calls / len(profile.ranks))) if lines else 1


def _play(profile: Profile, n: int, seed: int) -> float:
    """Seconds of useful work in n calls on the virtual clock."""
    speeds = np.array(profile.speeds, dtype=np.float64)
    work = np.array([rank.useful_s for rank in profile.ranks]) * speeds / n
    costs = [np.full(ROWS, one / ROWS) for one in work]
    cluster = Cluster(mesh(*most_square_mesh(len(work))), speeds, noise=NOISE, seed=seed)
    played = [cluster.call(costs).seconds for _ in range(min(n, MOST))]
    if n < LEAST:
        return float(sum(played))
    return float(sum(played) + (n - len(played)) * np.mean(played[len(played) // 2 :]))
