"""The runs with faults in memory: all runs of some seeds, and how they ended, by kind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.agent.fault_link import InlineExecutor
from tests.agent.fault_run import Told, fault_run
from tests.agent.faults import Fault
from tests.agent.memory_disk import store_on_memory_disks

ENDS = ("a committed state", "nothing of ours", "broken")
COLUMNS = ("fault", "runs", "times", *ENDS)


def fault_runs(seeds: Iterable[int], kinds: Sequence[Fault] = tuple(Fault)) -> Iterator[Told]:
    """No run depends on another, so each can be repeated by its seed alone."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(InlineExecutor())
    former = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # The agent logs what strikes, at every step.
    try:
        with store_on_memory_disks():
            for seed in seeds:
                yield fault_run(seed, loop, kinds)
    finally:
        logging.disable(former)
        loop.close()


def rows(told: Sequence[Told]) -> list[tuple[str, ...]]:
    """A row for each kind of fault: the runs that it struck, how often, and how those runs
    ended."""
    found = []
    for fault in Fault:
        struck = [run for run in told if run.struck[fault]]
        ended = Counter(run.ended for run in struck)
        times = sum(run.struck[fault] for run in struck)
        counts = (len(struck), times, *(ended[end] for end in ENDS))
        found.append((fault.value, *map(str, counts)))
    return found
