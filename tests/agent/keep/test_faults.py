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
SAMPLE = 1000
# Two runs that broke a law once.
ONCE_BROKEN = (1324, 1810)
# At least which part of the runs each kind of fault struck, and which part had each end.
LEAST_PART_STRUCK = 0.015
LEAST_PART_ENDED = 0.2


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((*range(SAMPLE), *ONCE_BROKEN), id="sample"),
        pytest.param(range(RUNS), id="all", marks=pytest.mark.thorough),
    ],
)
def told(request: pytest.FixtureRequest) -> Iterator[list[Told]]:
    yield list(fault_runs(request.param))


def test_every_run_ends_on_a_whole_state(told: list[Told]) -> None:
    broken = [run for run in told if run.broken]
    if broken:
        stories = "\n".join(broken[0].story)
        seeds = ", ".join(f"{run.seed} ({run.broken[0]})" for run in broken[:10])
        count = f"{len(broken)} of {len(told)} runs broke a law"
        pytest.fail(f"{count}: {seeds}; the first:\n{stories}")


def test_every_kind_of_fault_struck_often(told: list[Told]) -> None:
    found = rows(told)
    shown = Table("Faults in memory", COLUMNS, found).text()
    print("\n" + shown)
    assert [row[0] for row in found] == [fault.value for fault in Fault]
    assert all(int(row[1]) >= LEAST_PART_STRUCK * len(told) for row in found), shown
    for end in ENDS[:2]:
        assert sum(run.ended == end for run in told) >= LEAST_PART_ENDED * len(told), end
        column = COLUMNS.index(end)
        assert all(int(row[column]) > 0 for row in found), "each fault, with each end"
