"""A real server under faults at random steps of a change ends on the old state or the new one."""

from __future__ import annotations

import pytest

from benchmarks.table import Table
from placewire.agent.contract.messages import Commit, Destroy, Stage
from tests.agent.keeping import PLAN
from tests.agent.real_fault_run import RealFault, table
from tests.agent.real_fault_runs import real_fault_runs
from tests.agent.real_lab import real_lab
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state

pytestmark = [pytest.mark.network, pytest.mark.slow]

SEEDS = range(len(RealFault))


def test_every_run_ends_on_a_whole_state() -> None:
    """Runs each kind of fault once; `make bench-agent` runs more."""
    told = list(real_fault_runs(SEEDS))
    columns, rows = table(told)
    print("\n" + Table("Faults on a real server", columns, rows).text())
    broken = {f"{run.seed}, {run.fault.value}": run.broken for run in told if run.broken}
    assert not broken
    assert {run.ended for run in told} == {"old", "new"}
    assert sum(run.management.lost for run in told) == 0, "the management path loses nothing"


def test_what_a_killed_switch_left_goes_with_the_rest() -> None:
    """A new ovs-vswitchd removes no interface whose bridge was removed while none ran."""
    with real_lab() as lab:
        before = _interfaces(lab.server)
        lab.ask(Stage(desired=desired_state(1), lease_seconds=30))
        lab.ask(Commit(generation=1, lease_seconds=None))
        assert len(_interfaces(lab.server)) > len(before)
        lab.kill_switch()
        lab.ask(Destroy(plan_name=PLAN))
        lab.repair()
        wait_for(lambda: lab.kept.lease.phase == "idle", "the end of all that is ours")
        assert _interfaces(lab.server) == before
        lab.ask(Stage(desired=desired_state(2), lease_seconds=30))
        assert lab.kept.lease.phase == "staged", lab.kept.lease.detail


def _interfaces(server: ServerUnderTest) -> list[str]:
    """Interfaces with their flags, without Open vSwitch's own, which it leaves and uses again."""
    lines = server.sh("ip -br link show").splitlines()
    return sorted(line for line in lines if not line.startswith("ovs-netdev"))
