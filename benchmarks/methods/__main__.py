"""Compares every method of the catalogue on the same graphs and NICs.

    python -m benchmarks.methods [--items 1 2 3 4] [--report FOLDER]

1 every engine on every graph, and `auto` against them; 2 which promises each engine kept; 3 what
the papers claim, on our graphs; 4 the thesis' and QuickP's programs over every solver, each with
$PLACEWIRE_BENCH_PROGRAM_SECONDS (60). Rows are kept in $PLACEWIRE_BENCH_CACHE, or in
~/.cache/placewire/bench, so that a run that was cut off goes on. Item 1 takes over an hour on two
cores that do nothing else, 3 half an hour, 4 an hour. --report writes the tables into
FOLDER/methods.md, with pictures.
"""

from __future__ import annotations

from benchmarks.report import run

HEAD = (
    "# Methods, measured\n\n`make bench-methods`. Steps are simulated under `contended`, `strict`, "
    "whatever a method decides by;\ntimes of operators are modelled (RTX 4080 Super) or the "
    "published graphs' own. Compare ratios; seconds\nare a machine's.\n"
)

ITEMS = {
    1: ("grand.tables",),
    2: ("promises.tables",),
    3: ("claims.tables",),
    4: ("programs.tables",),
}

if __name__ == "__main__":
    run("benchmarks.methods", __doc__, ITEMS, HEAD)
