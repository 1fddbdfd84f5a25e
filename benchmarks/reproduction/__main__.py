"""Asks of the papers' tables and figures what can be asked here, and writes docs/reproduction.md.

    python -m benchmarks.reproduction [--only NAME …] [--time-limit SECONDS]
                                      [--paper-times] [--disturbed]
    python -m benchmarks.reproduction --no-runs

NAME is a preset, or a table or figure as in `thesis-figure-3.2`. Without --time-limit each solve
has the limit of its preset, up to ten minutes: all of them take a day. With it the page says so.
--paper-times gives each as long as the paper's own took, up to 39 minutes, if that is longer.
--disturbed says that other programs run meanwhile: times are upper limits then, and decide only
what more quiet could not change. What decides claims in the least time comes first. Each solve is
kept in benchmarks/reproduction/found.json as soon as it ended, so that a run that was cut off loses
at most one, and goes on where it ended, on any machine that has the file. Graphs are kept in
$PLACEWIRE_BENCH_CACHE, or in ~/.cache/placewire/bench. --no-runs only writes the page again, which
marks what was found by older sources, and leaves out what was found for other settings.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from benchmarks.report import ROOT
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entries import ENTRIES, ILLUSTRATIONS
from benchmarks.reproduction.findings import FILE, Runs, load, replace_text, save
from benchmarks.reproduction.running import Terms, put_back, runs_of, solved

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
        put_back(kept, terms)
        for run in runs_of(chosen, kept, terms, partial(solved, terms=terms)):
            kept[run.source, run.model] = run
            save(kept, FILE)
            _write(kept)
    _write(kept)


def _write(kept: Runs) -> None:
    replace_text(PAGE, document(ENTRIES, ILLUSTRATIONS, kept))


if __name__ == "__main__":
    main(sys.argv[1:])
