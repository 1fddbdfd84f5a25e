"""The engine's figures, one table per item; results are kept, so that a run can be taken up again.

    python -m benchmarks.engine [--items 1 2 …] [--report FOLDER]

1 methods, 2 small graphs' gaps, 3 large graphs, 4 growth, 5 sharings, 6 reductions, 7 start-up,
8 learned engines.
All take well over an hour on two cores; 2, 4, 6 and 7 some minutes each, 8 half an hour. --report
writes FOLDER/engine.md with the tables and pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.engine import certified, growth, learned, methods, reduced, sharings, startup
from benchmarks.report import commit, machine, options
from benchmarks.table import Table


def main() -> None:
    assert __doc__ is not None
    asked = options("python -m benchmarks.engine", __doc__, range(1, 9), "engine.md")
    tables = []
    for item in asked.items:
        made = list(_tables(item, asked.report))
        print("\n".join(table.text() for table in made), flush=True)
        tables += made
    if asked.report is not None:
        _write(tables, asked.report)


def _tables(item: int, pictures: Path | None) -> Iterable[Table]:
    makers: dict[int, Callable[[], Iterable[Table]]] = {
        1: lambda: (methods.table(),),
        2: lambda: (certified.small_table(),),
        3: lambda: (certified.large_table(),),
        4: lambda: (growth.growth_table(pictures), growth.evaluations_table()),
        5: sharings.tables,
        6: lambda: (reduced.table(),),
        7: lambda: (startup.table(),),
        8: lambda: learned.tables(pictures),
    }
    return makers[item]()


def _write(tables: list[Table], folder: Path) -> None:
    head = [
        "# The engine, measured",
        "",
        f"`make bench-engine` at commit {commit()}, {machine()}; seed 0. "
        "Times of operators are modelled (RTX 4080 Super), not measured. Compare ratios; "
        "seconds are this machine's.",
        "",
    ]
    body = [table.markdown() for table in tables]
    pictures = [f"![{p.stem}]({p.name})" for p in sorted(folder.glob("engine-*.png"))]
    (folder / "engine.md").write_text("\n".join([*head, *body, *pictures, ""]))


if __name__ == "__main__":
    main()
