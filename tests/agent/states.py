"""Desired states for tests: what the controller would compile for two NICs of 50 Mbit/s."""

from __future__ import annotations

from typing import Any

from placewire.agent.contract.entries import (
    RULE_PRIORITY_BASE,
    TABLE_BASE,
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Route,
    Rule,
    Shaper,
    Sysctl,
)
from placewire.agent.contract.state import DesiredState
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest

NIC_RATE = 50_000_000


def queue(nic: str, queue_id: int, minimum: int, maximum: int, purpose: str) -> Queue:
    return Queue(
        nic=nic,
        queue_id=queue_id,
        min_bits_per_second=minimum,
        max_bits_per_second=maximum,
        burst_bits=120_000,
        purpose=purpose,
    )


def short_packet_flows(nics: tuple[str, ...]) -> tuple[Flow, ...]:
    return tuple(Flow(bridge=f"pw-{nic}", destination=None, queue_id=1) for nic in nics)


def desired_state(
    generation: int = 1,
    rates: tuple[int, int] = (10_000_000, 30_000_000),
    nics: tuple[str, ...] = ("nic0", "nic1"),
    **changes: Any,
) -> DesiredState:
    """rates: of the queues to .2 and .3 on every NIC, in bits per second."""
    rails = {nic: int(nic[-1]) for nic in nics}
    fields: dict[str, Any] = {
        "server": "s1",
        "plan_name": "test-plan",
        "plan_digest": "d" * 64,
        "generation": generation,
        "take_over": nics,
        "bridges": tuple(Bridge(name=f"pw-{nic}", nic=nic, datapath=DATAPATH) for nic in nics),
        "addresses": tuple(
            Address(interface=f"pw-{nic}", address=f"10.7.{rail}.1/24")
            for nic, rail in rails.items()
        ),
        "sysctls": (
            *(
                Sysctl(name=f"net.ipv4.conf.{interface}.arp_ignore", value="1")
                for nic in nics
                for interface in (f"pw-{nic}", nic)
            ),
            *(Sysctl(name=f"net.ipv4.conf.{nic}.rp_filter", value="2") for nic in nics),
        ),
        "shapers": tuple(Shaper(nic=nic, max_bits_per_second=NIC_RATE) for nic in nics),
        "queues": tuple(
            entry
            for nic in nics
            for entry in (
                queue(nic, 0, 500_000, NIC_RATE, "everything else"),
                queue(nic, 1, 1_500_000, NIC_RATE, "acknowledgements"),
                queue(nic, 2, rates[0], rates[0], "to s2"),
                queue(nic, 3, rates[1], rates[1], "to s3"),
            )
        ),
        "flows": tuple(
            Flow(bridge=f"pw-{nic}", destination=f"10.7.{rail}.{host}", queue_id=host)
            for nic, rail in rails.items()
            for host in (2, 3)
        )
        + (short_packet_flows(nics) if DATAPATH == "system" else ()),
        "classifiers": tuple(
            entry
            for nic, rail in rails.items()
            for entry in (
                Classifier(nic=nic, destination=None, queue_id=1),
                Classifier(nic=nic, destination=f"10.7.{rail}.2", queue_id=2),
                Classifier(nic=nic, destination=f"10.7.{rail}.3", queue_id=3),
            )
        )
        if DATAPATH == "netdev"
        else (),
        "routes": tuple(
            Route(
                table=TABLE_BASE + rail,
                destination=f"10.7.{rail}.0/24",
                interface=f"pw-{nic}",
                source=f"10.7.{rail}.1",
            )
            for nic, rail in rails.items()
        ),
        "rules": tuple(
            Rule(
                priority=RULE_PRIORITY_BASE + rail,
                source=f"10.7.{rail}.1/32",
                table=TABLE_BASE + rail,
            )
            for rail in rails.values()
        ),
    }
    return DesiredState(**{**fields, **changes})


def first_changes(server: ServerUnderTest) -> int:
    """How many changes a bare server takes: all entries of both NICs, and each NIC's move to its
    bridge. The kernel may have a sysctl as wanted already."""
    wanted = desired_state()
    already = [
        sysctl
        for sysctl in wanted.sysctls
        if server.sh(f"sysctl -n {sysctl.name}", check=False).strip() == sysctl.value
    ]
    return len(tuple(wanted.entries())) + len(wanted.bridges) - len(already)
