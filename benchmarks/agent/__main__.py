"""The agent's figures on Open vSwitch's userspace datapath, one or more tables per item.

    python -m benchmarks.agent [--items 2 4 …] [--report FOLDER]

2 faults on a real server; 4 bandwidth matrices of four servers with two NICs each; 5 one server
with 256 queues and flows; 6 one controller and 500 agents. It makes network namespaces, so it wants
root, and a machine that does nothing else. --report writes the tables of these items into
FOLDER/agent.md and leaves what it has of other items.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping

from benchmarks.report import run

HEAD = (
    "# The agent, measured\n\n`make bench-agent`, on Open vSwitch's userspace datapath. "
    "Seconds and rates are a machine's.\n"
)

# Modules of this package, by item.
ITEMS: Mapping[int, tuple[str, ...]] = {
    2: ("faults",),
    4: ("bandwidth",),
    5: ("scale",),
    6: ("many",),
}

if __name__ == "__main__":
    assert __doc__ is not None
    # What was made goes again however this ends.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run("benchmarks.agent", __doc__, ITEMS, HEAD)
