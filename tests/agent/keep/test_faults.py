"""Thousands of runs of the agent's state machine, each with faults at random steps, from a seed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.agent.fault_link import InlineExecutor
from tests.agent.fault_run import Told, fault_run
from tests.agent.faults import Fault
from tests.agent.memory_disk import store_on_memory_disks

pytestmark = pytest.mark.slow

RUNS = 2000
# At least how many runs each kind of fault struck, and at least how many runs had each end.
LEAST_RUNS_STRUCK = 60
LEAST_RUNS_ENDED = 400
ENDS = ("a committed state", "nothing of ours")


@pytest.fixture(scope="module")
def told() -> Iterator[list[Told]]:
    """The outcomes of all runs. No run depends on another, so each can be repeated by its seed
    alone."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(InlineExecutor())
    former = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # The agent logs what strikes, at every step.
    try:
        with store_on_memory_disks():
            yield [fault_run(seed, loop) for seed in range(RUNS)]
    finally:
        logging.disable(former)
        loop.close()


def test_every_run_ends_on_a_whole_state(told: list[Told]) -> None:
    broken = [run for run in told if run.broken]
    if broken:
        stories = "\n".join(broken[0].story)
        seeds = ", ".join(f"{run.seed} ({run.broken[0]})" for run in broken[:10])
        pytest.fail(f"{len(broken)} of {RUNS} runs broke a law: {seeds}; the first:\n{stories}")


def test_every_kind_of_fault_struck_often(told: list[Told]) -> None:
    print("\n" + table(told))
    rows = [line.split("|") for line in table(told).splitlines()[1:]]
    assert [row[0].strip() for row in rows] == [fault.value for fault in Fault]
    assert all(int(row[1]) >= LEAST_RUNS_STRUCK for row in rows), table(told)
    for column, end in enumerate(ENDS, start=3):
        assert sum(run.ended == end for run in told) >= LEAST_RUNS_ENDED, end
        assert all(int(row[column]) > 0 for row in rows), "each fault, with each end"


def table(told: list[Told]) -> str:
    """fault | runs that it struck | times | how those runs ended; one line per kind."""
    lines = [" | ".join(["fault".ljust(30), "runs", " times", *ENDS, "broken"])]
    for fault in Fault:
        struck = [run for run in told if run.struck[fault]]
        times = sum(run.struck[fault] for run in struck)
        ended = Counter(run.ended for run in struck)
        counts = " | ".join(f"{ended[end]:{len(end)}}" for end in (*ENDS, "broken"))
        lines.append(f"{fault.value:30} | {len(struck):4} | {times:5} | {counts}")
    return "\n".join(lines)
