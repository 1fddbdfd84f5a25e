"""Asks of the papers' tables and figures what can be asked here, and writes docs/reproduction.md.

    python -m benchmarks.reproduction [--only NAME …] [--time-limit SECONDS]
                                      [--paper-times] [--disturbed]
    python -m benchmarks.reproduction --no-runs

NAME is a preset, or a table or figure as in `thesis-figure-3.2`. Without --time-limit each solve
has the limit of its preset, up to ten minutes: all of them take a day. With it the page says so.
--paper-times gives each as long as the paper's own took, up to 39 minutes, if that is longer.
--disturbed says that other programs run meanwhile: times are upper limits then, and decide only
what more quiet could not change. What was solved is kept in $PLACEWIRE_BENCH_CACHE, or in
~/.cache/placewire/bench, so that a run that was cut off goes on where it ended. --no-runs only
writes the page again, which marks what was found by older sources.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.report import ROOT
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entries import ENTRIES, ILLUSTRATIONS
from benchmarks.reproduction.findings import FILE, Runs, load, replace_text, save
from benchmarks.reproduction.running import Terms, runs_of, solved

PAGE = ROOT / "docs" / "reproduction.md"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduction", description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )  # fmt: skip
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names)
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="of each solve, at most"
    )
    parser.add_argument(
        "--paper-times", action="store_true", help="give solves as long as the papers' took"
    )
    parser.add_argument("--disturbed", action="store_true", help="other programs run meanwhile")
    parser.add_argument("--no-runs", action="store_true", help="write the page from what is there")
    asked = parser.parse_args(arguments)
    kept = load(FILE)
    if not asked.no_runs:
        terms = Terms(asked.time_limit, asked.paper_times, asked.disturbed)
        chosen = [entry for entry in ENTRIES if entry.name in asked.only]
        for run in runs_of(chosen, kept, terms, solved):
            kept[run.source, run.model] = run
            save(kept, FILE)
            _write(kept)
    _write(kept)


def _write(kept: Runs) -> None:
    replace_text(PAGE, document(ENTRIES, ILLUSTRATIONS, kept))


if __name__ == "__main__":
    main(sys.argv[1:])
