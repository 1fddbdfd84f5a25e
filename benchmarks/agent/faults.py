"""Item 2: changes of a server, each with faults at random steps, and how each ended: real servers
with one fault each, and servers in memory with up to four."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.table import Table
from tests.agent import fault_table
from tests.agent.faults import MOST_FAULTS
from tests.agent.real_fault_run import (
    AT_MOST_SECONDS,
    BY_ITSELF_SECONDS,
    REPAIR_WITHIN_SECONDS,
    table,
)
from tests.agent.real_fault_runs import real_fault_runs_side_by_side

REAL_RUNS = 504
RUNS_IN_MEMORY = 10_000
PROGRESS_SECONDS = 30.0


class _Judged(Protocol):
    """broken: what is wrong with how a run ended; empty where nothing is."""

    @property
    def seed(self) -> int: ...

    @property
    def broken(self) -> object: ...


_Told = TypeVar("_Told", bound=_Judged)


def tables(_: Path | None) -> Iterable[Table]:
    seeds = range(REAL_RUNS)
    lanes = os.cpu_count() or 1
    told = list(_with_progress(real_fault_runs_side_by_side(seeds, lanes), seeds))
    columns, rows = table(told)
    yield Table(
        f"2. {len(told)} changes of real servers, each with a fault at a random step",
        columns,
        rows,
        notes=(
            "old, new: the whole state that the server was on in the end, by the oracle, which "
            "shares no code with the agent: its snapshot is equal to one taken before. next start: "
            f"whole only after another start of the agent, which was tried after "
            f"{BY_ITSELF_SECONDS:g} s; broken: not whole {AT_MOST_SECONDS:g} s after that, or "
            "something of others was touched, or a debt forgotten.",
            "management, data: packets without an answer, of 10 a second over the management NIC "
            "(of all runs), and over a NIC whose queues change (the most in one run); gap: the "
            "longest time between two answers there. What struck was repaired (daemons started, "
            f"the disk emptied, a NIC back) up to {REPAIR_WITHIN_SECONDS:g} s later; half of the "
            "NICs came back only after an undo. Nobody gave a NIC back what the agent should have.",
        ),
    )
    seeds = range(RUNS_IN_MEMORY)
    in_memory = list(_with_progress(fault_table.fault_runs(seeds), seeds))
    yield Table(
        f"2. {len(in_memory)} runs of the agent in memory, each with up to {MOST_FAULTS} faults",
        fault_table.COLUMNS,
        fault_table.rows(in_memory),
        notes=(
            "runs: those that the kind of fault struck; times: how often. A broken run broke a law "
            "(a whole state that somebody decided on, nothing of others touched, no debt "
            "forgotten, no lease too long or too short), and counts for each kind that struck it.",
        ),
    )


def _with_progress(runs: Iterable[_Told], seeds: Sized) -> Iterator[_Told]:
    """Passes the runs on. Says on standard error what is wrong with a broken one, and now and then
    how many ended, how many of them are broken, and how many minutes the others will take."""
    began = said = time.monotonic()
    broken = 0
    for number, run in enumerate(runs, 1):
        broken += bool(run.broken)
        if run.broken:
            print(f"    seed {run.seed}: {run.broken}", file=sys.stderr, flush=True)
        now = time.monotonic()
        if now - said >= PROGRESS_SECONDS or number == len(seeds):
            left = (now - began) / number * (len(seeds) - number) / 60
            print(
                f"    {number} of {len(seeds)} runs, {broken} broken, {left:.0f} min left",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            said = now
        yield run
