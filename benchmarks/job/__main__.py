"""The placed job's figures, one or more tables per item.

    python -m benchmarks.job [--items 1 2 …] [--report FOLDER]

1 placements against one rank, to the last bit; 2 bytes, counters, rails; 3 predictions; 4 sharings
by replay; 5 one rank against eager, capture, memory, Standard Evaluation; 7 one rank on CUDA, where
there is a device. --report writes the tables of these items into FOLDER/job.md and leaves what it
has of other items. Figures of time want a machine that does nothing else.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.report import commit, machine, options
from benchmarks.table import Table

# Modules of this package, by item, each with `tables(pictures: Path | None) -> Iterable[Table]`.
# A table's title begins with its item: "2. …".
ITEMS: Mapping[int, tuple[str, ...]] = {
    1: ("exact",),
    2: ("rails",),
    3: ("prediction", "training"),
    4: ("sharings",),
    5: ("one_rank", "memory", "standard_evaluation"),
    7: ("cuda",),
}


def main() -> None:
    assert __doc__ is not None
    asked = options("python -m benchmarks.job", __doc__, list(ITEMS), "job.md")
    for item in asked.items:
        made = []
        # Each as it comes: an hour's figures are not lost with the last.
        for table in _tables(item, asked.report):
            made.append(table)
            print(table.text(), flush=True)
            if asked.report is not None:
                write_tables(item, made, asked.report / "job.md")


def _tables(item: int, pictures: Path | None) -> Iterable[Table]:
    for name in ITEMS[item]:
        yield from importlib.import_module(f"benchmarks.job.{name}").tables(pictures)


def write_tables(item: int, tables: list[Table], file: Path) -> None:
    """The item's tables in place of those that the file has; items in order."""
    head = (
        "# The placed job, measured\n\n`make bench-job`. Compare ratios; seconds are a machine's.\n"
    )
    sections = _sections(file.read_text()) if file.exists() else {}
    when = f"Measured at commit {commit()} on {time.strftime('%Y-%m-%d')}, {machine()}.\n"
    sections[item] = "\n".join(f"{table.markdown()}\n{when}" for table in tables)
    file.write_text("\n".join([head, *(sections[key] for key in sorted(sections))]))


def _sections(text: str) -> dict[int, str]:
    """By item, from the first heading of an item to the first of the next."""
    found: dict[int, str] = {}
    for part in re.split(r"^(?=## \d+\. )", text, flags=re.M)[1:]:
        item = int(part.split(".")[0].removeprefix("## "))
        found[item] = "\n".join(filter(None, [found.get(item), part.rstrip("\n") + "\n"]))
    return found


if __name__ == "__main__":
    main()
