"""Figure 3.2 of the thesis as network states: its queues, addresses and flows.

Of each NIC 4 % is kept for acknowledgements, so that 20 of its Gbit/s are 19.2 here.
"""

from __future__ import annotations

import pytest

from placewire.agent.contract.entries import ACKNOWLEDGEMENT_QUEUE, bridge_name
from placewire.agent.contract.state import DesiredState
from placewire.controller.compile.network import compile_network
from placewire.optimizer.cluster_plan.payload import payload_capacity
from tests.controller.plans import capabilities, placement, plan, plan_document

LINK = 20e9
PAYLOAD = payload_capacity(LINK)
KEPT_FOR_THE_JOB = 0.96
Rates = tuple[tuple[str, str, str, float], ...]


def states(rates: Rates) -> dict[str, DesiredState]:
    """Servers s1 to s4 are the figure's A to D; rails a and b its left and right interface."""
    of = plan(plan_document(4, rate="20Gbit"))
    able = {server.name: capabilities(set_queue_honoured=True) for server in of.cluster.servers}
    return compile_network(of, placement(of, rates), able, dict.fromkeys(able, 1))


def pair_queues(state: DesiredState, nic: str) -> dict[str, int]:
    """(purpose, maximum) of the queues of pairs on a NIC."""
    return {
        queue.purpose: queue.max_bits_per_second
        for queue in state.queues
        if queue.nic == nic and queue.queue_id > ACKNOWLEDGEMENT_QUEUE
    }


def test_figure_3_2_b_one_queue_on_the_left_two_on_the_right():
    """A to B at 20 Gbit/s by the left interface; to C and to D at 10 each by the right one."""
    state = states((("s1", "s2", "a", PAYLOAD), ("s1", "s3", "b", PAYLOAD / 2),
                    ("s1", "s4", "b", PAYLOAD / 2)))["s1"]  # fmt: skip
    whole = KEPT_FOR_THE_JOB * LINK
    assert pair_queues(state, "nic0") == {"to s2": pytest.approx(whole, abs=2)}
    right = pair_queues(state, "nic1")
    assert right == {
        "to s3": pytest.approx(whole / 2, abs=2), "to s4": pytest.approx(whole / 2, abs=2),
    }  # fmt: skip
    # "The aggregate of these queue-level max_rate values cannot exceed that of the policy."
    limit = {shaper.nic: shaper.max_bits_per_second for shaper in state.shapers}
    assert limit == {"nic0": LINK, "nic1": LINK}
    assert sum(right.values()) <= limit["nic1"]
    # Flow mapping: each destination's address on that rail to its own queue.
    queue_of = {
        (flow.bridge, flow.destination): flow.queue_id for flow in state.flows if flow.destination
    }
    number = {queue.purpose: queue.queue_id for queue in state.queues if "to s" in queue.purpose}
    assert queue_of == {
        (bridge_name("nic0"), "10.7.0.2"): number["to s2"],
        (bridge_name("nic1"), "10.7.1.3"): number["to s3"],
        (bridge_name("nic1"), "10.7.1.4"): number["to s4"],
    }
    assert len(set(number.values())) == 3


def test_figure_3_2_c_one_destination_over_both_interfaces():
    """Each of A's addresses has a routing table of its own, which leads through its own interface
    to B's address there, and on each interface B has a queue of the whole rate."""
    state = states((("s1", "s2", "a", PAYLOAD), ("s1", "s2", "b", PAYLOAD)))["s1"]
    for rail, nic in enumerate(("nic0", "nic1")):
        assert pair_queues(state, nic) == {
            "to s2": pytest.approx(KEPT_FOR_THE_JOB * LINK, abs=2)
        }  # fmt: skip
        (rule,) = [one for one in state.rules if one.source.startswith(f"10.7.{rail}.1")]
        ways = [route for route in state.routes if route.table == rule.table]
        assert {route.interface for route in ways} == {bridge_name(nic)}
        assert f"10.7.{rail}.2" in {flow.destination for flow in state.flows}
    assert len({rule.table for rule in state.rules}) == 2
