"""Item 2: changes of a real server, each with a fault at a random step, and how each ended."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.table import Table
from tests.agent.real_fault_run import (
    AT_MOST_SECONDS,
    BY_ITSELF_SECONDS,
    REPAIR_WITHIN_SECONDS,
    RealFault,
    RealFaultRun,
    Told,
    table,
)
from tests.agent.real_lab import real_lab

RUNS = 200


def tables(_: Path | None) -> Iterable[Table]:
    told = list(runs(range(RUNS)))
    columns, rows = table(told)
    yield Table(
        f"2. {len(told)} changes of one real server, each with a fault at a random step",
        columns,
        rows,
        notes=(
            "old, new: the whole state that the server was on in the end, read back by another "
            "process and by the system's tools. next start: whole only after another start of the "
            f"agent, which was tried after {BY_ITSELF_SECONDS:g} s; broken: not whole "
            f"{AT_MOST_SECONDS:g} s after that.",
            "management, data: packets without an answer, of 10 a second over the management NIC "
            "(of all runs), and over a NIC whose queues change (the most in one run); gap: the "
            "longest time between two answers there. What struck was repaired (daemons started, "
            f"the NIC plugged in, the disk emptied) up to {REPAIR_WITHIN_SECONDS:g} s later.",
        ),
    )


def runs(seeds: Iterable[int]) -> Iterator[Told]:
    """Runs one change per seed, with each kind of fault in turn. A broken run leaves a server that
    the next run cannot use, so a new lab is made for that run."""
    waiting = list(seeds)
    faults = list(RealFault)
    while waiting:
        with real_lab() as lab:
            on_this = RealFaultRun(lab)
            while waiting:
                seed = waiting.pop(0)
                told = on_this.run(seed, faults[seed % len(faults)])
                yield told
                if told.broken:
                    print(f"  seed {seed}, {told.fault.value}: {told.broken}", file=sys.stderr)
                    break
