"""Every method of the catalogue on the same graphs and NICs; a run that was cut off goes on.

    python -m benchmarks.methods [--items 1 2 3] [--report FOLDER]

1 every engine on every graph, and `auto` against them; 2 what each engine kept of its promises;
3 what the papers claim, on our graphs. Rows are kept in $PLACEWIRE_BENCH_CACHE, or in
~/.cache/placewire/bench. Item 1 takes over an hour on two cores that do nothing else, 3 half an
hour. --report writes the tables into FOLDER/methods.md, with pictures.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping

from benchmarks.report import run

HEAD = (
    "# Methods, measured\n\n`make bench-methods`. Steps are simulated under `contended`, `strict`, "
    "whatever a method decides by;\ntimes of operators are modelled (RTX 4080 Super) or the "
    "published graphs' own. Compare ratios; seconds\nare a machine's.\n"
)

# Modules of this package, by item.
ITEMS: Mapping[int, tuple[str, ...]] = {1: ("grand",), 2: ("promises",), 3: ("claims",)}


if __name__ == "__main__":
    assert __doc__ is not None
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run("benchmarks.methods", __doc__, ITEMS, HEAD)
