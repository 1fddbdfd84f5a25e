"""Random desired states of the server under test, for hypothesis; agents accept each of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

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
from tests.agent.states import NIC_RATE, desired_state, queue

HOSTS = (2, 3, 4)
QUEUE_IDS = (2, 3, 7)
NICS = ("nic0", "nic1")


@st.composite
def desired_states(draw: st.DrawFn) -> DesiredState:
    """Any subset of the NICs, shaped or not, and of everything that can be on them."""
    parts = [draw(_of_nic(nic)) for nic in NICS if draw(st.booleans())]
    rails = [int(part["bridges"].nic[-1]) for part in parts]
    rules = [_rule(rail) for rail in rails if draw(st.booleans())]
    filters = [
        Sysctl(name=f"net.ipv4.conf.nic{rail}.rp_filter", value=draw(st.sampled_from("012")))
        for rail in rails
        if draw(st.booleans())
    ]
    fields: dict[str, Any] = {
        "bridges": tuple(part["bridges"] for part in parts),
        "addresses": tuple(
            Address(interface=f"pw-nic{rail}", address=f"10.7.{rail}.1/24") for rail in rails
        ),
        "rules": tuple(rules),
        "sysctls": (*filters, *(one for part in parts for one in part["sysctls"])),
    }
    for name in ("shapers", "queues", "flows", "classifiers", "routes"):
        fields[name] = tuple(one for part in parts for one in part.get(name, ()))
    return desired_state(1, nics=NICS, **fields)


@st.composite
def _of_nic(draw: st.DrawFn, nic: str) -> dict[str, Any]:
    rail, bridge = int(nic[-1]), f"pw-{nic}"
    part: dict[str, Any] = {
        "bridges": Bridge(
            name=bridge,
            nic=nic,
            datapath="netdev",
            mtu_bytes=draw(st.sampled_from([1500, 1500, 1400])),
        ),
        # A bridge's own go with its interface, and no sooner: controllers ask the same of all.
        "sysctls": [
            Sysctl(name=f"net.ipv4.conf.{interface}.arp_ignore", value="1")
            for interface in (bridge, nic)
            if interface == bridge or draw(st.booleans())
        ],
        "routes": [_route(bridge, rail, gateway=draw(st.booleans()))]
        if draw(st.booleans())
        else [],
    }
    if draw(st.integers(0, 3)):
        part |= draw(_shaping(nic))
    return part


@st.composite
def _shaping(draw: st.DrawFn, nic: str) -> dict[str, Any]:
    rail = int(nic[-1])
    rate = draw(st.sampled_from([NIC_RATE, NIC_RATE - 5_000_000]))
    pairs = draw(st.lists(st.sampled_from(QUEUE_IDS), unique=True))
    queues = [_queue(draw, nic, queue_id, rate) for queue_id in (0, 1, *sorted(pairs))]
    to = {host: draw(st.sampled_from([0, 1, *pairs])) for host in HOSTS if draw(st.booleans())}
    steered = {host: q for host, q in to.items() if draw(st.booleans())}
    short = [Classifier(nic=nic, destination=None, queue_id=1)] if draw(st.booleans()) else []
    return {
        "shapers": [Shaper(nic=nic, max_bits_per_second=rate)],
        "queues": queues,
        "flows": [
            Flow(bridge=f"pw-{nic}", destination=f"10.7.{rail}.{host}", queue_id=queue_id)
            for host, queue_id in to.items()
        ],
        "classifiers": [
            *short,
            *(
                Classifier(nic=nic, destination=f"10.7.{rail}.{host}", queue_id=queue_id)
                for host, queue_id in steered.items()
            ),
        ],
    }


def _queue(draw: st.DrawFn, nic: str, queue_id: int, most: int) -> Queue:
    minimum = draw(st.sampled_from([500_000, 3_000_000, 8_000_000]))
    maximum = draw(st.sampled_from([minimum, 20_000_000, most]))
    return queue(nic, queue_id, minimum, maximum, draw(st.sampled_from(["to x", "to y"])))


def _rule(rail: int) -> Rule:
    return Rule(
        priority=RULE_PRIORITY_BASE + rail, source=f"10.7.{rail}.1/32", table=TABLE_BASE + rail
    )


def _route(bridge: str, rail: int, *, gateway: bool) -> Route:
    return Route(
        table=TABLE_BASE + rail,
        destination="0.0.0.0/0" if gateway else f"10.7.{rail}.0/24",
        interface=bridge,
        source=f"10.7.{rail}.1",
        gateway=f"10.7.{rail}.3" if gateway else None,
    )
