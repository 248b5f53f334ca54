"""The commands that read a record: `report` shows a run as one page; `advise` replays a run in other variants, and
predicts what would help, and by how much."""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from lb_mpi.cli.advise.advice import advise, collapsed, conclude
from lb_mpi.cli.advise.replay import gain, replays
from lb_mpi.cli.dispatch import PATIENCE_S, Command, deliver, output
from lb_mpi.cli.report.page import page
from lb_mpi.cli.report.run import Run, gather, headline, of_ranks, times
from lb_mpi.cli.report.trace import trace
from lb_mpi.status import StatusLine
from lb_mpi.table import Table

T = TypeVar("T")
FOLDER = "folder of the record, as given to run --record or in LB_MPI_RECORD"

# --- report ---------------------------------------------------------------------------------------------------------


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help=FOLDER)
    add("-o", dest="output", type=output, default="report.html", metavar="FILE",
        help="file for the page; -: standard output")
    add("--trace", type=output, metavar="FILE", help="also write a trace for Perfetto or chrome://tracing")


def _report(options: argparse.Namespace) -> dict[str, Any]:
    """Write the page; return the numbers of the headline (None: unknown), and notes on missing data."""
    began = time.process_time()
    found = gather(Path(options.folder))
    head = headline(found, *gain(found), lambda: _conclusion(found))
    text = page(found, head)
    deliver(options.output, text)
    if options.trace is not None:
        deliver(options.trace, json.dumps(trace(found), separators=(",", ":")))
    return {
        "ranks": found.size,
        "recorded": len(found.ranks),
        **{name: _known(value) for name, value in head._asdict().items()},
        "notes": found.notes,
        "file": options.output,
        "trace": options.trace,
        "bytes": len(text.encode()),
        "cpu_seconds": time.process_time() - began,
    }


def _describe_report(answer: dict[str, Any]) -> list[str]:
    gain, trace_file, next_step = answer["gain"], answer["trace"], answer["next_step"]
    ranks = of_ranks(answer["recorded"], answer["ranks"])
    bound = "not known" if answer["bound_s"] is None else f"{answer['bound_s']:.3f} s"
    ratio = "" if answer["ratio"] is None else f": {answer['ratio']:.2f} times as long"
    efficiencies = [answer[name] for name in ("parallel", "balance", "communication")]
    lines = [
        "" if gain is None else f"{times(gain)} times as fast as without balancing (predicted)",
        f"{ranks}, {answer['seconds']:.3f} s; in lb_mpi {answer['inside_s']:.3f} s, ideal time "
        f"(lower bound) {bound}{ratio}",
        "" if None in efficiencies
        else "parallel efficiency {:.1%} = load balance {:.1%} * communication {:.1%}".format(*efficiencies),
        answer["words"],
        f"Next: {next_step}" if next_step else "",
        *(f"note: {note}" for note in answer["notes"]),
        f"{answer['file']} ({answer['bytes'] / 1e3:,.0f} kB)",
        f"{trace_file}: open it at https://ui.perfetto.dev" if trace_file else "",
    ]  # fmt: skip
    return [line for line in lines if line]


def _conclusion(run: Run) -> str:
    """Return the conclusion of `advise` for the driver with the longest calls; "" if nothing can be replayed."""
    found = max(replays(run)[0], key=lambda one: one.measured_s, default=None)
    return "" if found is None else f"{conclude(advise(found, lambda _: None))[0]}."


# --- advise ----------------------------------------------------------------------------------------------------------


def _add_advise(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help=FOLDER)


def _advise(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Replay a record in other variants; return the list that docs/advise.md describes."""
    run = gather(Path(options.folder))
    replayed, why = replays(run)
    if not replayed:
        raise ValueError(f"{options.folder}: {'; '.join([*why, *run.notes])}")
    with StatusLine(PATIENCE_S) as line:
        found = [advise(one, line.show) for one in replayed]
    found[0].notes.extend([*run.notes, *why])
    answer: list[dict[str, Any]] = []
    for advice in found:
        conclusion, reliable = conclude(advice)
        alike = [[advice.lines.index(line) for line in group] for group in collapsed(advice.lines)]
        lines: list[dict[str, Any]] = [
            {
                **{name: _known(getattr(line, name)) for name in ("predicted_s", "measured_s", "spread_s")},
                "driver": advice.of.driver,
                "what": line.variant.what,
                "change": line.variant.change,
            }
            for line in advice.lines
        ]
        lines[0] |= {"conclusion": conclusion, "reliable": reliable, "alike": alike, "notes": advice.notes}
        answer += lines
    return answer


def _describe_advice(answer: list[dict[str, Any]]) -> list[str]:
    said: list[str] = []
    for driver, group in groupby(answer, key=lambda line: line["driver"]):
        of_driver = list(group)
        first = of_driver[0]
        header = (driver, "predicted", "spread", "measured", "to recorded", "change")
        cells = []
        for alike in first["alike"]:
            line, names = of_driver[alike[0]], [of_driver[k]["what"] for k in alike]
            cells.append((
                ", ".join(names), _seconds(line["predicted_s"]),
                _part(100.0 * line["spread_s"], line["predicted_s"], ".1f", " %"), _seconds(line["measured_s"]),
                _part(line["predicted_s"], first["measured_s"], ".2f", "x"), line["change"],
            ))  # fmt: skip
        said += [""] * bool(said) + [f"{driver}: {first['conclusion']}"]
        if first["reliable"]:
            said += [Table(header, cells, words=(0, 5)).fitted(), *(f"note: {note}" for note in first["notes"])]
    return said


def _known(value: T) -> T | None:
    return None if isinstance(value, float) and math.isnan(value) else value


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"


def _part(one: float, whole: float, digits: str, unit: str) -> str:
    return f"{one / whole:{digits}}{unit}" if whole else ""


COMMANDS = {
    "report": Command(_add_report, _report, _describe_report),
    "advise": Command(_add_advise, _advise, _describe_advice),
}
