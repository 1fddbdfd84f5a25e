"""Foreign flows that appear between the agent's look at a bridge and its change of it."""

from __future__ import annotations

import subprocess

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.entries import FLOW_PRIORITY
from placewire.agent.contract.state import ApplyReport
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.steps import EntryStep
from placewire.agent.wiring import build_keeper
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

pytestmark = pytest.mark.network

SAME_MATCH = f"priority={FLOW_PRIORITY},in_port=LOCAL,ip,nw_dst=10.7.0.3"
OVERLAPPING = f"priority={FLOW_PRIORITY},tcp,tp_dst=9"


def flows(server: ServerUnderTest, bridge: str = "pw-nic0") -> list[str]:
    """The flows without counters and durations, so that a flow that stays is the same line."""
    management = f"unix:{server.directory}/{bridge}.mgmt"
    shown = server.sh(f"ovs-ofctl -O OpenFlow13 --no-stats dump-flows {management}")
    return sorted(line.strip() for line in shown.splitlines())


def add_theirs(server: ServerUnderTest, match: str) -> str:
    """Adds a foreign flow, and returns it as the switch shows it."""
    before = flows(server)
    server.sh(
        f"ovs-ofctl add-flow unix:{server.directory}/pw-nic0.mgmt "
        f"cookie=7,idle_timeout=0,{match},actions=drop"
    )
    (added,) = set(flows(server)) - set(before)
    return added


@pytest.mark.parametrize("match", [SAME_MATCH, OVERLAPPING])
def test_a_flow_that_came_after_the_look_is_not_overwritten(
    server: ServerUnderTest, match: str
) -> None:
    """Calls the driver directly: the keeper has looked before, and saw nothing."""
    desired = desired_state(1, nics=("nic0",))
    assert server.inside(keeping.stage, server.config, desired).succeeded
    first, second = desired.flows
    here = Server(server.config)
    server.inside(here.apply, [EntryStep(second, None)], "plan")
    theirs = add_theirs(server, match)
    during = flows(server)
    moved = first.model_copy(update={"queue_id": 3})
    changes = [EntryStep(first, moved), EntryStep(None, second)]
    with pytest.raises(AssertionError, match=r"EffectError: .*not ours") as raised:
        server.inside(here.apply, [EntryStep(first, moved), EntryStep(None, second)], "plan")
    assert theirs in str(raised.value), "named as the switch shows it"
    assert flows(server) == during, "neither theirs nor any of ours: a bundle is one"
    server.sh(f"ovs-ofctl --strict del-flows unix:{server.directory}/pw-nic0.mgmt {match}")
    server.inside(here.apply, changes, "plan")
    assert {f.queue_id for f in server.inside(keeping.observe, server.config).state.flows} == {3}


def _stage_while_somebody_adds(config: AgentConfig, command: list[str]) -> ApplyReport:
    """The foreign flow comes when the agent has looked at everything and has its bridges."""
    server = Server(config)
    apply = server.apply

    def apply_late(steps: list[EntryStep], plan_name: str) -> None:
        server.apply = apply  # type: ignore[method-assign]
        at = next(n for n, s in enumerate(steps) if s.collection == "flows")
        apply(steps[:at], plan_name)
        subprocess.run(command, check=True)
        apply(steps[at:], plan_name)

    server.apply = apply_late  # type: ignore[method-assign, assignment]
    return build_keeper(config, server).stage(desired_state(2), 60)


def test_the_change_is_undone_and_their_flow_stays(server: ServerUnderTest) -> None:
    """The bridge stays, so that the foreign flow can outlive the undoing."""
    bare = desired_state(1, flows=(), classifiers=(), queues=(), shapers=())
    assert server.inside(keeping.stage, server.config, bare).succeeded
    server.inside(keeping.commit, server.config, 1)
    before, flows_before = server.snapshot(), flows(server)
    management = f"unix:{server.directory}/pw-nic0.mgmt"
    command = ["ovs-ofctl", "add-flow", management, f"cookie=7,{SAME_MATCH},actions=drop"]
    report = server.inside(_stage_while_somebody_adds, server.config, command)
    assert not report.succeeded and "nw_dst=10.7.0.3 actions=drop" in report.refusals[0].what
    assert server.snapshot() == before
    (theirs,) = set(flows(server)) - set(flows_before)
    assert theirs.startswith("cookie=0x7") and theirs.endswith("nw_dst=10.7.0.3 actions=drop")
    assert len(flows(server)) == len(flows_before) + 1
    assert server.inside(keeping.read_back, server.config, 1).deviations == ()
    refused = server.inside(keeping.stage, server.config, desired_state(3))
    assert "a foreign flow has its match" in refused.refusals[0].what, "and now before any change"


def test_the_flow_of_a_new_bridge_is_put_back_where_somebody_removed_all_flows(
    server: ServerUnderTest,
) -> None:
    """Without it, a bridge passes no ARP, and nothing that comes in."""
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    management, before = f"unix:{server.directory}/pw-nic0.mgmt", flows(server)
    server.sh(f"ovs-ofctl del-flows {management}; ip neighbour flush dev pw-nic0")
    due = server.inside(keeping.read_back, server.config, 1)
    assert ("bridges", "pw-nic0") in {(c.collection, c.key) for c in due.deviations}
    assert any("passes nothing" in problem for problem in due.problems)
    assert server.inside(keeping.resume, server.config).succeeded
    assert flows(server) == before
    assert server.inside(keeping.reaches, "10.7.0.2", "10.7.0.1")
    assert server.inside(keeping.read_back, server.config, 1).problems == ()


@pytest.mark.parametrize("how", ["a controller", "a flow for all packets"])
def test_what_somebody_else_forwards_by_on_our_bridge_is_left(
    server: ServerUnderTest, how: str
) -> None:
    server.inside(keeping.stage, server.config, desired_state(1))
    server.inside(keeping.commit, server.config, 1)
    management = f"unix:{server.directory}/pw-nic0.mgmt"
    if how == "a controller":
        server.vsctl("set-controller pw-nic0 unix:/nowhere -- set-fail-mode pw-nic0 secure")
        server.sh(f"ovs-ofctl --strict del-flows {management} priority=0")
    else:
        server.sh(f"ovs-ofctl add-flow {management} priority=0,actions=drop")
    forwarding = [line for line in flows(server) if "priority=0 " in line]
    resumed = server.inside(keeping.resume, server.config)
    # Open vSwitch removes all flows of a bridge that is given a controller, ours too.
    assert resumed.succeeded and {change.collection for change in resumed.changes} <= {"flows"}
    assert [line for line in flows(server) if "priority=0 " in line] == forwarding
