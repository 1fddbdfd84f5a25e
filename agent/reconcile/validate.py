"""What is refused before anything is touched. Pure; every refusal says what, where and a remedy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from placewire.agent.contract.capabilities import TrafficControl
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.refusals_nics import (
    address_refusals,
    bridge_refusals,
    sysctl_refusals,
)
from placewire.agent.reconcile.refusals_queues import (
    kernel_refusals,
    queue_refusals,
    speed_refusals,
    steering_refusals,
)
from placewire.agent.reconcile.refusals_routing import routing_refusals

UNKNOWN_KERNEL = TrafficControl()


@dataclass(frozen=True)
class ServerFacts:
    """What the checks need to know of the server beside its observed state.

    protected            interfaces that are never touched
    protected_addresses  addresses that must keep working, as a.b.c.d: that which reaches the
                         controller among them
    open_vswitch_version e.g. (3, 1)
    traffic_control      what the kernel has of it
    """

    server: str
    datapath: str
    open_vswitch_version: tuple[int, ...]
    protected: frozenset[str]
    protected_addresses: frozenset[str]
    traffic_control: TrafficControl = UNKNOWN_KERNEL


def refusals(
    desired: DesiredState, observed: ObservedState, ledger: Ledger, facts: ServerFacts
) -> tuple[Refusal, ...]:
    """Empty where `desired` can be applied."""
    if desired.server != facts.server:
        return (
            Refusal(
                what=f"this state is for server {desired.server!r}",
                where=f"server {facts.server}",
                remedy="give every agent the name that its server has in the plan",
            ),
        )
    try:
        wanted = canonical(desired)
    except ValueError as error:
        return (
            Refusal(
                what=f"{error}; only IPv4 is supported",
                where=f"server {facts.server}",
                remedy="use IPv4 addresses and networks",
            ),
        )
    taken = {nic.nic for nic in ledger.nics}
    found = [
        *_twice(wanted),
        *bridge_refusals(wanted, observed, facts.datapath, facts.protected, taken),
        *_management(wanted, observed, facts),
        *address_refusals(wanted, observed, facts.protected),
        *sysctl_refusals(wanted),
        *queue_refusals(wanted, facts.open_vswitch_version),
        *kernel_refusals(wanted, facts.traffic_control),
        *speed_refusals(wanted, observed),
        *steering_refusals(wanted, observed),
        *routing_refusals(wanted, observed),
    ]
    return tuple(dict.fromkeys(found))


def _twice(wanted: DesiredState) -> list[Refusal]:
    counts = Counter((entry.collection, entry.key) for entry in wanted.entries())
    return [
        Refusal(what="occurs twice", where=f"{collection}: {key}", remedy="state it once")
        for (collection, key), count in counts.items()
        if count > 1
    ]


def _management(wanted: DesiredState, observed: ObservedState, facts: ServerFacts) -> list[Refusal]:
    """No NIC through which the controller is reached may be taken over."""
    nics = {bridge.nic for bridge in wanted.bridges}
    return [
        Refusal(
            what=f"carries {address}, through which this server reaches its controller",
            where=f"NIC {nic.name}",
            remedy="reach the controller over a NIC that is not in the plan",
        )
        for nic in observed.nics
        if nic.name in nics
        for address in nic.addresses
        if address.split("/")[0] in facts.protected_addresses
    ]
