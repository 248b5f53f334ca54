"""All printed tables and figures of the papers that lb_mpi stands on, in one run, beside what is computed here.

    python -m benchmarks.papers [--full] [--output out/papers] [--json] [--only drafting,diffusion] [--no-plots]

writes papers.md, section by section: a page with an outcome for each printed number (same, better, error in print, not
reproducible, with the reason), its plots (with the extra `plot`), and papers.json with all items.  Minutes; --full
draws as much as the papers did and more, and takes several times as long.  The exit code is 1 when a number differs.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.measuring import command, pyplot
from benchmarks.papers import allocation, arrangement, diffusion, drafting, partition, second
from benchmarks.papers.page import DIFFERS, KINDS, OUTCOMES, Run, Section, write

SECTIONS = {
    "drafting": drafting.section,
    "diffusion": diffusion.section,
    "arrangement": arrangement.section,
    "allocation": allocation.section,
    "partition": partition.section,
    "second": second.section,
}


def main() -> int:
    """Run all of it."""
    parser = command("papers", __doc__)
    parser.add_argument("--full", action="store_true", help="use at least as many random instances as the papers did")
    parser.add_argument("--output", type=Path, default=Path("out/papers"), help="folder for the page (%(default)s)")
    parser.add_argument("--only", default=",".join(SECTIONS), metavar="NAMES", help="run only some of %(default)s")
    parser.add_argument("--predict", action="store_true", help="only write what the model of `stopping.py` predicts")
    parser.add_argument("--no-plots", action="store_true", help="write the page without pictures; needs no matplotlib")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := sorted(set(names) - set(SECTIONS)):
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join(SECTIONS)}")
    plt = None if args.no_plots else pyplot(parser)
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    args.output.mkdir(parents=True, exist_ok=True)
    run = Run(args.output, plt, args.full, say)
    if args.predict:
        arrangement.write_predictions(run)
        return 0
    sections: list[Section] = []
    items: list[dict[str, str]] = []
    for name in SECTIONS:
        if name in names:
            sections.append(SECTIONS[name](run))
            items += [{"section": sections[-1].title, **vars(item)} for item in sections[-1].items]
            # After each section, so that a run that is ended leaves what it had.
            (args.output / "papers.md").write_text(write(sections, time.perf_counter() - began, args.full))
            (args.output / "papers.json").write_text(json.dumps(items, indent=1))
    say("done")
    for kind in KINDS:
        counts = Counter(item["outcome"] for item in items if item["kind"] == kind)
        if counts:
            print(f"{counts.total()} lines from {kind}: " + ", ".join(f"{counts[word]} {word}" for word in OUTCOMES))
    print(f"page: {args.output}/papers.md")
    if args.json:
        print(json.dumps(items))
    return 1 if any(item["outcome"] == DIFFERS for item in items) else 0


if __name__ == "__main__":
    sys.exit(main())
