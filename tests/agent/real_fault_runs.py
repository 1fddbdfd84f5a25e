"""Runs changes of real servers, one per seed, each with a fault of the next kind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.queues import SimpleQueue

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


def real_fault_runs_side_by_side(seeds: Sequence[int], lanes: int) -> Iterator[Told]:
    """As `real_fault_runs`, in so many processes at once, each with labs of its own; a run waits
    most of the time. They are yielded as they end. Raises RuntimeError where a process fails."""
    context = multiprocessing.get_context("spawn")
    told: SimpleQueue[Told | None] = context.SimpleQueue()
    processes = [
        context.Process(target=_lane, args=(seeds[lane::lanes], told)) for lane in range(lanes)
    ]
    running = lanes
    try:
        for process in processes:
            process.start()
        while running:
            run = told.get()
            if run is None:
                running -= 1
            else:
                yield run
    finally:
        for process in processes:
            if running and process.is_alive() and process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
        for process in processes:
            if process.pid is not None:
                process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process that ran faults failed; its error stands above")


def _lane(seeds: Sequence[int], told: SimpleQueue[Told | None]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for run in real_fault_runs(seeds):
            told.put(run)
    finally:
        told.put(None)
