"""The engine's figures, one table per item; results are kept, so that a run can be taken up again.

    python -m benchmarks.engine [--items 1 2 …] [--report FOLDER]

1 methods, 2 small graphs' gaps, 3 large graphs, 4 growth, 5 sharings, 6 reductions, 7 start-up.
All take well over an hour on two cores; 2, 4, 6 and 7 some minutes each. --report writes
FOLDER/engine.md with the tables and pictures.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.engine.measured import ROOT
from benchmarks.engine.table import Table


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--items", type=int, nargs="+", choices=range(1, 8), default=list(range(1, 8))
    )
    parser.add_argument("--report", type=Path, help="folder for engine.md and pictures")
    options = parser.parse_args()
    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
    tables = []
    for item in options.items:
        made = list(_tables(item, options.report))
        print("\n".join(table.text() for table in made), flush=True)
        tables += made
    if options.report is not None:
        _write(tables, options.report)


def _tables(item: int, pictures: Path | None) -> Iterable[Table]:
    from benchmarks.engine import certified, growth, methods, reduced, sharings, startup

    makers: dict[int, Callable[[], Iterable[Table]]] = {
        1: lambda: (methods.table(),),
        2: lambda: (certified.small_table(),),
        3: lambda: (certified.large_table(),),
        4: lambda: (growth.growth_table(pictures), growth.evaluations_table()),
        5: sharings.tables,
        6: lambda: (reduced.table(),),
        7: lambda: (startup.table(),),
    }
    return makers[item]()


def _write(tables: list[Table], folder: Path) -> None:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    head = [
        "# The engine, measured",
        "",
        f"`make bench-engine` at commit {commit}, {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}; seed 0. Times of operators are modelled (RTX 4080 "
        "Super), not measured. Compare ratios; seconds are this machine's.",
        "",
    ]
    body = [table.markdown() for table in tables]
    pictures = [f"![{p.stem}]({p.name})" for p in sorted(folder.glob("engine-*.png"))]
    (folder / "engine.md").write_text("\n".join([*head, *body, *pictures, ""]))


if __name__ == "__main__":
    main()
