"""The command that reads a record: `report` shows a run as one page, with its predicted times with other settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lb_mpi.cli.advice import gain, predictions
from lb_mpi.cli.report.page import page
from lb_mpi.cli.report.run import Advice, gather, headline, of_ranks, times
from lb_mpi.cli.report.trace import trace
from lb_mpi.cli.run.command import Output
from lb_mpi.cli.run.options import PATIENCE_S, deliver, output, written
from lb_mpi.status import StatusLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report`."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="folder of the record, as given to run --record or in LB_MPI_RECORD")
    add("-o", dest="output", type=output, default="report.html", metavar="FILE",
        help="file for the page; -: standard output")
    add("--trace", type=output, metavar="FILE", help="also write a trace for Perfetto or chrome://tracing")


def report(options: argparse.Namespace) -> Output:
    """Write the page; return the numbers of the headline (None: unknown), and notes on missing data."""
    if options.trace == options.output:
        raise ValueError(f"trace {options.trace}: expected another file than that of the page")
    found = gather(Path(options.folder))
    with StatusLine(PATIENCE_S) as line:
        predicted, why = predictions(found, line.show)
    longest = max(predicted, key=lambda one: one.measured_s, default=None)
    head = headline(found, *gain(predicted), "" if longest is None else f"{longest.conclusion}.")
    deliver(options.output, page(found, head, predicted, why))
    if options.trace is not None:
        deliver(options.trace, json.dumps(trace(found), separators=(",", ":")))
    figures = {
        "ranks": found.size,
        "recorded": len(found.ranks),
        **{name: None if value != value else value for name, value in head._asdict().items()},  # NaN is none of JSON's
        "settings": [one.to_json() for one in predicted],
        "not_predicted": why,
        "notes": found.notes,
        "file": options.output,
        "trace": options.trace,
    }
    return Output(figures, _describe(figures, predicted))


def _describe(answer: dict[str, Any], predicted: Sequence[Advice]) -> list[str]:
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
        *_notes(answer["notes"]),
        "With other settings:" if predicted else "",
        *(line for one in predicted for line in _of_driver(one)),
        *_notes(answer["not_predicted"]),
        *written(answer["file"]),
        f"{trace_file}: open it at https://ui.perfetto.dev" if written(trace_file) else "",
    ]  # fmt: skip
    return [line for line in lines if line]


def _of_driver(one: Advice) -> list[str]:
    return [one.words] if one.doubt else [one.words, one.table().fitted(), *_notes(one.notes)]


def _notes(words: Sequence[str]) -> list[str]:
    return [f"note: {one}" for one in words]
