"""Runs changes of real servers, one per seed, each with a fault of the next kind."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from tests.agent.real_fault_run import RealFault, RealFaultRun, Told
from tests.agent.real_lab import real_lab


def real_fault_runs(seeds: Iterable[int]) -> Iterator[Told]:
    """A broken run leaves a server that the next run cannot use, and so does one that leaves
    something for a person to decide: a new lab is made for the next."""
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
                if told.broken or told.spent:
                    break
