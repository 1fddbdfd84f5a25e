"""A real server under faults at random steps of a change: it ends on the old state or the new."""

from __future__ import annotations

import pytest

from benchmarks.table import Table
from real_fault_run import RealFault, RealFaultRun, table
from real_lab import real_lab

pytestmark = [pytest.mark.network, pytest.mark.slow]

SEEDS = range(22)


def test_every_run_ends_on_a_whole_state() -> None:
    """Each kind of fault twice. More of them: `make bench-agent`."""
    faults = list(RealFault)
    with real_lab() as lab:
        runs = RealFaultRun(lab)
        told = [runs.run(seed, faults[seed % len(faults)]) for seed in SEEDS]
    columns, rows = table(told)
    print("\n" + Table("Faults on a real server", columns, rows).text())
    broken = {f"{run.seed}, {run.fault.value}": run.broken for run in told if run.broken}
    assert not broken
    assert {run.ended for run in told} == {"old", "new"}
    assert sum(run.management.lost for run in told) == 0, "the management path loses nothing"
