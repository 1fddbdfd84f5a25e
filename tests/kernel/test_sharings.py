"""set_queue and HTB of a stock kernel deliver what each sharing promises, with all queues in use.

There are four servers with two NICs each. The controller compiles their states and judges the
measurements; rates are low enough for an emulated processor.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.compile.network import compile_network
from placewire.controller.compile.transfers import Promise, promises
from placewire.controller.plan.plan import Plan
from placewire.controller.verify.bandwidth_check import judge
from placewire.optimizer.cluster_plan.payload import payload_capacity
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.transfers import class_bytes
from tests.controller.plans import placement, plan, plan_document
from tests.kernel.servers import Servers, capabilities, measure, servers_on_rails, stranger

pytestmark = [pytest.mark.network, pytest.mark.slow]

NIC_BITS_PER_SECOND = 12e6
SECONDS = 10
TOLERANCE = 0.10
NAMES = ("s1", "s2", "s3", "s4")
NEIGHBOUR_PORT = 43000
# Each sender's share of one receiver's NIC: unequal, so that a wrong share shows.
GUARANTEED = {"s2": 0.5, "s3": 0.3, "s4": 0.2}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with servers_on_rails(NAMES) as built:
        yield built


def the_plan(sharing: SharingName) -> Plan:
    document = plan_document(len(NAMES), rate=f"{NIC_BITS_PER_SECOND / 1e6:g}Mbit")
    document["network"] = {
        "sharing": sharing,
        "verify": {"seconds": SECONDS, "tolerance": f"{TOLERANCE:.0%}"},
    }
    return plan(document)


def incast_rates() -> tuple[tuple[str, str, str, float], ...]:
    """Senders have all of s1's NICs, in unequal shares, and half of every other receiver's NIC, so
    that the other half can be lent."""
    whole = payload_capacity(NIC_BITS_PER_SECOND)
    return tuple(
        (source, to, rail, whole * (GUARANTEED[source] if to == "s1" else 1 / 6))
        for source in NAMES
        for to in NAMES
        for rail in "ab"
        if source != to
    )


def put_in_force(servers: Servers, of: Plan, placed: Placement) -> None:
    lease = servers["s1"].inside(keeping.observe, servers["s1"].config).lease
    number = lease.highest_generation + 1
    able = {name: server.inside(capabilities, server.config) for name, server in servers.items()}
    assert {a.steering for a in able.values()} == {"set_queue"}
    states = compile_network(of, placed, able, dict.fromkeys(NAMES, number))
    for name, server in servers.items():
        report = server.inside(keeping.stage, server.config, states[name], 600)
        assert report.succeeded, report
        server.inside(keeping.commit, server.config, number)


def verdict(servers: Servers, of: Plan, promised: Sequence[Promise]) -> tuple[LinkMeasurement, ...]:
    """Measures and judges as the controller does: again where a promise was missed."""
    for _ in range(2):
        results = measure(servers, [p.transfer for p in promised], SECONDS)
        links = judge(of, promised, results, dict.fromkeys(NAMES, 0.0))
        if all(link.within_tolerance for link in links):
            break
    for link in links:
        print(f"{link.source} {link.nic} to {link.destination}: "
              f"{link.measured_bits_per_second / 1e6:.2f} of "
              f"{link.promised_bits_per_second / 1e6:.2f} Mbit/s {link.error or ''}")  # fmt: skip
    return links


def delivered(links: Sequence[LinkMeasurement]) -> bool:
    return all(link.within_tolerance for link in links)


def test_strict_24_queues_at_once_each_give_their_rate_and_no_more(servers: Servers) -> None:
    of = the_plan("strict")
    whole = payload_capacity(NIC_BITS_PER_SECOND) / 3
    each = tuple((s, d, rail, whole) for s in NAMES for d in NAMES for rail in "ab" if s != d)
    placed = placement(of, each)
    put_in_force(servers, of, placed)
    promised = promises(of, placed)
    assert len(promised) == 24
    first = class_bytes(servers["s1"], 0)
    assert delivered(verdict(servers, of, promised))
    assert class_bytes(servers["s1"], 0) - first < 20_000, "of many MB, through no queue of its own"


def test_guarantee_holds_under_incast_and_lends_what_is_idle(servers: Servers) -> None:
    of = the_plan("guarantee")
    placed = placement(of, incast_rates(), "guarantee")
    put_in_force(servers, of, placed)
    promised = promises(of, placed)
    into_s1 = [p for p in promised if p.transfer.destination == "s1"]
    assert delivered(verdict(servers, of, into_s1)), "three senders into one NIC"
    lender = next(p for p in promised if p.transfer.source == "s2" and
                  p.transfer.destination == "s3" and p.transfer.rail == "a")  # fmt: skip
    (alone,) = verdict(servers, of, [lender])
    least = lender.transfer.promised_bits_per_second
    assert lender.at_most_bits_per_second > 1.5 * least
    assert alone.measured_bits_per_second > 1.5 * least


def test_job_keeps_its_floor_beside_a_neighbour_and_the_nic_alone(servers: Servers) -> None:
    of = the_plan("job")
    placed = placement(of, (), "job")
    put_in_force(servers, of, placed)
    promised = promises(of, placed)
    (sender,) = [p for p in promised if (p.transfer.source, p.transfer.rail) == ("s1", "a")]
    floor = sender.transfer.promised_bits_per_second
    whole = payload_capacity(NIC_BITS_PER_SECOND)
    (alone,) = measure(servers, [sender.transfer], SECONDS)
    assert alone.measured_bits_per_second > (1 - TOLERANCE) * whole
    neighbour = start_neighbour(servers["s1"])
    (beside,) = measure(servers, [sender.transfer], SECONDS)
    theirs = ended(neighbour)
    print(f"job {beside.measured_bits_per_second / 1e6:.2f}, floor {floor / 1e6:.2f}, "
          f"neighbour {theirs / 1e6:.2f} of {whole / 1e6:.2f} Mbit/s")  # fmt: skip
    assert beside.measured_bits_per_second > (1 - TOLERANCE) * floor
    assert theirs > (1 - TOLERANCE) * (whole - floor) * 0.9
    assert ended(start_neighbour(servers["s1"], 5)) > (1 - TOLERANCE) * whole


def start_neighbour(server: ServerUnderTest, seconds: int = 2 * SECONDS) -> subprocess.Popen[bytes]:
    """Starts eight greedy flows to an address that no plan names."""
    address = stranger(0)

    def listens() -> bool:
        return f":{NEIGHBOUR_PORT} " in server.sh("ss -ltn", peer=True)

    wait_for(lambda: not listens(), "the end of the iperf3 before")
    server.popen("iperf3", "-s", "-1", "-B", address, "-p", str(NEIGHBOUR_PORT), peer=True,
                 stdout=subprocess.DEVNULL)  # fmt: skip
    wait_for(listens, "iperf3")
    return server.popen(
        "iperf3", "-J", "-c", address, "-p", str(NEIGHBOUR_PORT), "-P", "8", "-t", str(seconds),
        stdout=subprocess.PIPE,
    )  # fmt: skip


def ended(neighbour: subprocess.Popen[bytes]) -> float:
    """Waits for the neighbour's end; returns the bits per second that arrived."""
    said, _ = neighbour.communicate(timeout=300)
    return float(json.loads(said)["end"]["sum_received"]["bits_per_second"])
