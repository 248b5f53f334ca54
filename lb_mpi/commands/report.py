"""The command `report`: the record of a run as one page, as figures, and as a trace for Perfetto."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from lb_mpi.files import write_whole
from lb_mpi.report import figures
from lb_mpi.report.page import page
from lb_mpi.report.run import gather, headline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", metavar="FOLDER", help="with the record: that of --record, or of LB_MPI_RECORD")
    parser.add_argument(
        "--follow", action="store_true", help="show how the run proceeds until it ends, then write the page"
    )
    parser.add_argument("-o", dest="output", default="report.html", metavar="FILE", help="the page (%(default)s)")
    parser.add_argument(
        "--perfetto", metavar="FILE", help="also write a trace for ui.perfetto.dev (needs the package perfetto)"
    )
    parser.add_argument("--svg", metavar="DIR", help="also write each figure as a file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Write the page; ValueError when there is no record that can be read, OSError for files.

    The headline's numbers, what is missing (`notes`), the `files` written, the page's `bytes`, and `cpu_seconds`.
    """
    began = time.process_time()
    if options.follow:
        from lb_mpi.report.live import follow

        follow(lambda: gather(Path(options.folder)))
    found = gather(Path(options.folder))
    files: list[Path] = []
    if options.svg is not None:
        Path(options.svg).mkdir(parents=True, exist_ok=True)
        for name, svg in figures.files(found):
            files.append(Path(options.svg, name))
            write_whole(files[-1], svg)
    if options.perfetto is not None:
        from lb_mpi.report.perfetto import trace

        write_whole(options.perfetto, trace(found))
        files.append(Path(options.perfetto))
    text = page(found)
    write_whole(options.output, text)
    return {
        "ranks": found.size,
        **headline(found)._asdict(),
        "notes": found.notes,
        "files": [options.output, *map(str, files)],
        "bytes": len(text.encode()),
        "cpu_seconds": time.process_time() - began,
    }


def summary(answer: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    return [
        f"{answer['ranks']:,} ranks, {answer['seconds']:.3f} s; in lb_mpi {answer['inside_s']:.3f} s, ideal time "
        f"(lower bound) {answer['bound_s']:.3f} s: {answer['ratio']:.2f} times as long",
        f"parallel efficiency {answer['parallel']:.1%} = load balance {answer['balance']:.1%} * communication "
        f"{answer['communication']:.1%}",
        answer["words"],
        *(f"note: {note}" for note in answer["notes"]),
        f"{', '.join(answer['files'])} ({answer['bytes'] / 1e3:,.0f} kB)",
    ]
