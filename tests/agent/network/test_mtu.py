"""Frames larger than 1500 bytes: what a bridge gets, what passes whole, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from placewire.agent.contract.state import DesiredState
from placewire.controller.compile.units import burst_bits, wire_rate
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state
from tests.agent.transfers import listen, send, transfer
from tests.measured import until

MTU = 9000
PAYLOAD_BITS_PER_SECOND = 20e6

pytestmark = pytest.mark.network


def wanted(mtu_bytes: int, generation: int = 1, **changes: Any) -> DesiredState:
    """20 Mbit/s of payload to .3, as the controller would compile it for that MTU."""
    rate = wire_rate(PAYLOAD_BITS_PER_SECOND, mtu_bytes)
    state = desired_state(generation, rates=(1_000_000, rate), **changes)
    bridges = tuple(b.model_copy(update={"mtu_bytes": mtu_bytes}) for b in state.bridges)
    queues = tuple(
        q.model_copy(update={"burst_bits": burst_bits(q.max_bits_per_second, mtu_bytes)})
        for q in state.queues
    )
    return state.model_copy(update={"bridges": bridges, "queues": queues})


def raise_mtu(server: ServerUnderTest, mtu_bytes: int = MTU) -> None:
    for peer in (False, True):
        server.sh(f"for n in nic0 nic1; do ip link set $n mtu {mtu_bytes}; done", peer=peer)


def class_counters(server: ServerUnderTest, queue_id: int) -> tuple[int, int]:
    """(bytes, frames) that have left through a queue of nic0."""
    shown = server.sh("tc -s class show dev nic0").split("class htb ")
    (mine,) = [text for text in shown if text.startswith(f"1:{queue_id + 1:x} ")]
    found = re.search(r"Sent (\d+) bytes (\d+) pkt", mine)
    assert found is not None
    return int(found[1]), int(found[2])


def bridge_mtus(server: ServerUnderTest) -> set[int]:
    return {b.mtu_bytes for b in server.inside(keeping.observe, server.config).state.bridges}


def problems(server: ServerUnderTest) -> tuple[str, ...]:
    found: tuple[str, ...] = server.inside(keeping.read_back, server.config, 1).problems
    return found


@pytest.mark.slow
def test_a_promised_rate_is_delivered_in_large_frames(server: ServerUnderTest) -> None:
    raise_mtu(server)
    assert server.inside(keeping.stage, server.config, wanted(MTU)).succeeded
    assert bridge_mtus(server) == {MTU}
    large = transfer(3)
    # Compiled for frames of 1500 bytes, it would be 3.8 % more.
    promised = pytest.approx(PAYLOAD_BITS_PER_SECOND, rel=0.03)

    def measure() -> float:
        listen(server, (large,))
        (result,) = server.inside(send, (large,), 2)
        return float(result.measured_bits_per_second)

    assert until(lambda rate: rate == promised, measure) == promised
    size_bytes, frames = class_counters(server, 3)
    assert size_bytes / frames > 0.9 * MTU
    assert problems(server) == ()
    server.sh("ip link set nic0 mtu 4000")
    assert [p for p in problems(server) if "pw-nic0 has MTU 9000, its NIC only 4000" in p]


def test_a_nic_whose_mtu_is_smaller_is_refused_before_anything_changes(
    server: ServerUnderTest,
) -> None:
    server.sh("ip link set nic1 mtu 9000")
    before = server.snapshot()
    previewed = server.inside(keeping.preview, server.config, wanted(MTU))
    report = server.inside(keeping.stage, server.config, wanted(MTU))
    (refusal,) = report.refusals
    assert previewed.refusals == (refusal,) and report.changes == ()
    assert refusal.where == "NIC nic0" and "has MTU 1500, its bridge wants 9000" in refusal.what
    assert "ip link set nic0 mtu 9000" in refusal.remedy and "switch" in refusal.remedy
    assert server.snapshot() == before


def test_a_nic_whose_mtu_is_larger_sends_smaller_frames(server: ServerUnderTest) -> None:
    raise_mtu(server)
    before = server.snapshot()
    report = server.inside(keeping.stage, server.config, wanted(1500))
    assert report.succeeded, report.refusals
    assert bridge_mtus(server) == {1500}
    # Another plan asks for a larger MTU; it leaves the network as before.
    assert server.inside(keeping.stage, server.config, wanted(MTU, 2)).succeeded
    assert bridge_mtus(server) == {MTU}
    assert server.inside(keeping.destroy, server.config).succeeded
    assert server.snapshot() == before
