"""A lab of four servers under random operations and faults, for hours, judged by the oracle.

    python -m benchmarks.soak [--hours 3] [--seed 0] [--report FOLDER]

After each operation every server is on one decision or as the lab made it; after each destroy the
oracle's snapshot of each server equals the first one. What the agents and Open vSwitch use is
counted all the time, and must not grow. It makes network namespaces, so it needs root. Ends with 1
where something did not hold; each such thing is printed as it is found.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import write_tables
from benchmarks.soak.lab_under_soak import LabUnderSoak, lab_under_soak
from benchmarks.soak.operations import FAULTS, OPERATIONS, Fault, Operation
from benchmarks.soak.usage import Usage, usage_table
from benchmarks.table import Table

HEAD = (
    "# A lab under random operations and faults\n\n`python -m benchmarks.soak`: four servers with "
    "two NICs each, on Open vSwitch's userspace datapath.\n"
)
# What is used at first, before caches and logs have what they hold, is not compared.
WARM_UP = 0.1


class Told:
    """How often each operation was done, with each fault, and what did not hold."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self.usages: list[Usage] = []
        self.snapshots = 0

    def add(self, names: Iterator[str], complaints: list[str]) -> None:
        for name in names:
            done = self.counts.setdefault(name, [0, 0])
            done[0] += 1
            done[1] += bool(complaints)

    @property
    def broken(self) -> int:
        return sum(broken for _, broken in self.counts.values())


def soak(lab: LabUnderSoak, seed: int, seconds: float) -> Told:
    """Goes on until `seconds` are over, and until all is undone."""
    rng, told = random.Random(seed), Told()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        operation = rng.choices(OPERATIONS, [one.weight for one in OPERATIONS])[0]
        fault = rng.choice(FAULTS) if rng.random() < 0.5 else None
        _do(lab, told, rng, operation, fault)
    _do(lab, told, rng, next(one for one in OPERATIONS if one.name == "destroy"), None)
    return told


def _do(
    lab: LabUnderSoak, told: Told, rng: random.Random, operation: Operation, fault: Fault | None
) -> None:
    began = time.monotonic()
    complaints = list(operation.run(lab, rng, fault))
    complaints += lab.complaints()
    told.snapshots += lab.snapshots_taken
    told.usages.append(lab.usage())
    names = (name for name in (operation.name, fault.name if fault else None) if name)
    told.add(names, complaints)
    line = f"{time.monotonic() - began:6.1f} s  {operation.name}"
    print(line + (f", with {fault.name}" if fault else ""), flush=True)
    for complaint in complaints:
        print(f"  BROKEN {complaint}", flush=True)


def tables(told: Told, seed: int, seconds: float) -> list[Table]:
    rows = [(name, str(done), str(broken)) for name, (done, broken) in sorted(told.counts.items())]
    return [
        Table(
            f"1. {seconds / 3600:.1f} hours of random operations and faults, seed {seed}",
            ("operation or fault", "times", "did not hold"),
            rows,
            notes=(f"{told.snapshots} snapshots of servers were compared with the first ones.",),
        ),
        usage_table(told.usages[int(len(told.usages) * WARM_UP) :]),
    ]


def main() -> int:
    # As an exception, SIGTERM lets every `with` take down the lab and the processes that it made.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="folder for soak.md")
    asked = parser.parse_args()
    with lab_under_soak() as lab:
        told = soak(lab, asked.seed, asked.hours * 3600)
    made = tables(told, asked.seed, asked.hours * 3600)
    for table in made:
        print(table.text())
    if asked.report is not None:
        asked.report.mkdir(parents=True, exist_ok=True)
        write_tables(1, made, asked.report / "soak.md", HEAD)
    return 1 if told.broken else 0


if __name__ == "__main__":
    sys.exit(main())
