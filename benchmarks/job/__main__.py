"""The placed job's figures, one or more tables per item.

    python -m benchmarks.job [--items 1 2 …] [--report FOLDER]

1 placements against one rank, to the last bit; 2 bytes, counters, rails; 3 predictions; 4 sharings
by replay; 5 one rank against eager, capture, memory, Standard Evaluation; 7 one rank on CUDA, where
there is a device; 8 an ordinary script on every NIC. --report writes the tables of these items into
FOLDER/job.md and leaves what it has of other items. Figures of time want a machine that does
nothing else.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping

from benchmarks.report import run

HEAD = "# The placed job, measured\n\n`make bench-job`. Compare ratios; seconds are a machine's.\n"

# Modules of this package, by item.
ITEMS: Mapping[int, tuple[str, ...]] = {
    1: ("exact",),
    2: ("rails",),
    3: ("prediction", "training"),
    4: ("sharings",),
    5: ("one_rank", "memory", "standard_evaluation"),
    7: ("cuda",),
    8: ("scripts",),
}


if __name__ == "__main__":
    assert __doc__ is not None
    # What was made goes again however this ends.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run("benchmarks.job", __doc__, ITEMS, HEAD)
