"""Thousands of runs of the agent's state machine, each with faults at random steps, from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.table import Table
from tests.agent.fault_run import Told
from tests.agent.fault_table import COLUMNS, ENDS, fault_runs, rows
from tests.agent.faults import Fault

pytestmark = pytest.mark.slow

RUNS = 2000
# At least how many runs each kind of fault struck, and at least how many runs had each end.
LEAST_RUNS_STRUCK = 30
LEAST_RUNS_ENDED = 400


@pytest.fixture(scope="module")
def told() -> Iterator[list[Told]]:
    yield list(fault_runs(range(RUNS)))


def test_every_run_ends_on_a_whole_state(told: list[Told]) -> None:
    broken = [run for run in told if run.broken]
    if broken:
        stories = "\n".join(broken[0].story)
        seeds = ", ".join(f"{run.seed} ({run.broken[0]})" for run in broken[:10])
        pytest.fail(f"{len(broken)} of {RUNS} runs broke a law: {seeds}; the first:\n{stories}")


def test_every_kind_of_fault_struck_often(told: list[Told]) -> None:
    found = rows(told)
    shown = Table("Faults in memory", COLUMNS, found).text()
    print("\n" + shown)
    assert [row[0] for row in found] == [fault.value for fault in Fault]
    assert all(int(row[1]) >= LEAST_RUNS_STRUCK for row in found), shown
    for end in ENDS[:2]:
        assert sum(run.ended == end for run in told) >= LEAST_RUNS_ENDED, end
        column = COLUMNS.index(end)
        assert all(int(row[column]) > 0 for row in found), "each fault, with each end"
