"""The agent's figures on Open vSwitch's userspace datapath, one or more tables per item.

    python -m benchmarks.agent [--items 2 4 …] [--report FOLDER]

2 faults on a real server; 4 bandwidth matrices of four servers with two NICs each; 5 one server
with 256 queues and flows; 6 one controller and 500 agents. It makes network namespaces, so it needs
root, and a machine that does nothing else. --report writes the tables of these items into
FOLDER/agent.md and leaves those of other items.
"""

from __future__ import annotations

from benchmarks.report import run

HEAD = (
    "# The agent, measured\n\n`make bench-agent`, on Open vSwitch's userspace datapath. "
    "Seconds and rates are a machine's.\n"
)
ITEMS = {
    2: ("faults.tables",),
    4: ("bandwidth.tables",),
    5: ("scale.tables",),
    6: ("many.tables",),
}

if __name__ == "__main__":
    run("benchmarks.agent", __doc__, ITEMS, HEAD)
