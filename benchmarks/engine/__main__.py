"""The engine's figures, by item; results are kept, so that a run can be taken up again.

    python -m benchmarks.engine [--items 1 2 …] [--report FOLDER]

1 methods, 2 small graphs' gaps, 3 large graphs, 4 growth, 5 sharings, 6 reductions, 7 start-up and
the first plan, 8 learned engines, 9 ours beside DDP, FSDP and pipelines, 10 the same of steps in
many micro-batches on 16 servers, 11 steps of core operators. All take about five hours on two
cores: 1 an hour and a quarter, 5 and 8 half an hour each, 9 two hours, 3 and 10 a quarter of an
hour each, the others some minutes. --report writes the tables of these items into FOLDER/engine.md,
with pictures, and leaves those of other items.
"""

from __future__ import annotations

from benchmarks.report import run

HEAD = (
    "# The engine, measured\n\n`make bench-engine`; seed 0. Times of operators are modelled (RTX "
    "4080 Super), not measured. Compare ratios; seconds are a machine's.\n\nThe items were "
    "measured at different commits and on different days, which stand below their tables.\n"
)
ITEMS = {
    1: ("methods.tables",),
    2: ("certified.small_tables",),
    3: ("certified.large_tables",),
    4: ("growth.tables",),
    5: ("sharings.tables",),
    6: ("reduced.tables",),
    7: ("startup.tables", "first_plan.tables"),
    8: ("learned.tables",),
    9: ("parallelisms.tables",),
    10: ("size.tables",),
    11: ("fine.tables",),
}

if __name__ == "__main__":
    run("benchmarks.engine", __doc__, ITEMS, HEAD)
