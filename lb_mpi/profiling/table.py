"""A profile in lines for people.   (pure)"""

from __future__ import annotations

from collections.abc import Mapping

from lb_mpi.profiling.profile import END, Line, Profile

MOST_RANKS, MOST_LINES, MOST_NAMES = 32, 10, 3
_EXPLAINED = (
    "useful: outside of MPI; cpu: CPU time of the main thread in it (if less, it slept, read files, or queued for a core);",
    "waiting: in calls between two ranks the whole call, data's way included; in collectives until the last rank had come;",
    "other MPI: the rest of the time in MPI; sent: bytes handed to MPI.",
)


def table(profile: Profile) -> list[str]:
    """Ranks, the lines that waited most, metrics, and one sentence."""
    size, hosts = len(profile.ranks), len({rank.host for rank in profile.ranks})
    head = f"profile of {profile.program}: {_count(size, 'rank')} on {_count(hosts, 'host')}, {profile.seconds:.2f} s"
    lines = [head, "", *_of_ranks(profile), "", *_of_lines(profile), "", *_EXPLAINED, ""]
    return [*lines, *metrics(profile), *(f"note: {note}" for note in profile.notes), sentence(profile)]


def metrics(profile: Profile) -> list[str]:
    """The POP metrics with their definitions."""
    return [
        f"load balance              {profile.load_balance:6.1%}   mean useful / longest useful",
        f"communication efficiency  {profile.communication_efficiency:6.1%}   longest useful / time of the program",
        f"parallel efficiency       {profile.parallel_efficiency:6.1%}   the product: mean useful / time of the program",
    ]


def sentence(profile: Profile) -> str:
    """Say who is waited for, and what perfect balance would gain."""
    most, part = profile.most_waited_for
    speeds = "by speed" if len(set(profile.speeds)) > 1 else "by speed (all equal)"
    would = (
        f"perfectly balanced {speeds} this run would take {profile.balanced_s / max(profile.seconds, 1e-9):.0%} of it"
    )
    if not all(rank.complete for rank in profile.ranks):
        return "the run was not complete: who was waited for in collectives is not known"
    if part < 0.005:
        return f"no rank is waited for during 1% of the time; {would}"
    return f"rank {most} is waited for during {part:.0%} of the time (mean of the others); {would}"


def _of_ranks(profile: Profile) -> list[str]:
    width = max(4, *(len(rank.host) for rank in profile.ranks))
    lines = [
        f"{'rank':>6}  {'host':<{width}}  {'useful':>15}  {'cpu':>8}  {'waiting':>15}  {'other MPI':>15}  {'sent':>8}  for"
    ]
    for rank in profile.ranks[:MOST_RANKS]:
        spent = [
            f"{s:7.2f} s {_part(s, profile.seconds):>5}" for s in (rank.useful_s, rank.waiting_s, rank.communication_s)
        ]
        whom = _whom(rank.waited_s, profile.seconds)
        lines.append(
            f"{rank.rank:>6}  {rank.host:<{width}}  {spent[0]}  {rank.useful_cpu_s:6.2f} s  {spent[1]}  {spent[2]}"
            f"  {_size(rank.sent_bytes):>8}  {whom}"
        )
    if len(profile.ranks) > MOST_RANKS:
        lines.append(f"   ... and {len(profile.ranks) - MOST_RANKS} more")
    return lines


def _of_lines(profile: Profile) -> list[str]:
    found = [line for line in profile.lines() if line.seconds > 0]
    if not found:
        return ["no calls of MPI were seen"]
    shown = found[:MOST_LINES]
    names = [_name(line) for line in shown]
    width = max(4, *map(len, names))
    lines = [f"{'line':<{width}}  {'calls':>9}  {'waiting':>10}  {'mean':>9}  {'other MPI':>10}  {'sent':>8}  for"]
    for name, line in zip(names, shown, strict=True):
        waiting = line.waiting_s
        lines.append(
            f"{name:<{width}}  {line.calls:>9,}  {waiting:8.2f} s  {_short(waiting / line.calls):>9}  "
            f"{line.communication_s:8.2f} s  {_size(line.sent_bytes):>8}  {_whom(line.waited_s, waiting)}"
        )
    rest = found[MOST_LINES:]
    if rest:
        lines.append(
            f"... and {_count(len(rest), 'line')} more, {sum(line.waiting_s for line in rest):.2f} s of waiting"
        )
    return [*lines, "(all ranks' seconds added up)"]


def _name(line: Line) -> str:
    if line.call == END:
        return END
    file = line.file.replace("\\", "/").split("/")
    return f"{'/'.join(file[-2:]) if len('/'.join(file)) > 40 else '/'.join(file)}:{line.line} {line.call}"


def _whom(waited_s: Mapping[int, float], whole: float) -> str:
    """As "rank 2 41 %, rank 1 3 %"; who is waited for less than half a percent is left out."""
    most = sorted(waited_s.items(), key=lambda item: -item[1])
    told = [f"{_rank(rank)} {_part(seconds, whole)}" for rank, seconds in most if seconds >= 0.005 * whole > 0]
    return ", ".join(told[:MOST_NAMES]) + (", .." if len(told) > MOST_NAMES else "")


def _rank(rank: int) -> str:
    return f"rank {rank}" if rank >= 0 else "somebody"


def _part(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.0%}" if whole > 0 else "0%"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def _short(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
