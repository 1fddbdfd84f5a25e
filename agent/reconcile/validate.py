"""Finds why a desired state cannot be applied to a server, before anything is touched. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from placewire.agent.contract.capabilities import TrafficControl
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal, refuse
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

    open_vswitch_version  for example (3, 1)
    protected             interfaces that are never touched
    protected_addresses   addresses (a.b.c.d) that must keep working, as the way to the controller
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
    """All refusals; empty where `desired` can be applied."""
    where = f"server {facts.server}"
    if desired.server != facts.server:
        what = f"this state is for server {desired.server!r}"
        return (refuse(where, what, "give every agent the name that its server has in the plan"),)
    try:
        wanted = canonical(desired)
    except ValueError as error:
        what = f"{error}; only IPv4 is supported"
        return (refuse(where, what, "use IPv4 addresses and networks"),)
    taken = {nic.nic for nic in ledger.nics}
    found = [
        *_twice(wanted),
        *bridge_refusals(wanted, observed, facts.datapath, facts.protected, taken),
        *_management(wanted, observed, facts),
        *address_refusals(wanted, observed, facts.protected),
        *sysctl_refusals(wanted, facts.protected),
        *queue_refusals(wanted, facts.open_vswitch_version),
        *kernel_refusals(wanted, facts.traffic_control),
        *speed_refusals(wanted, observed),
        *steering_refusals(wanted, observed),
        *routing_refusals(wanted, observed),
    ]
    return tuple(dict.fromkeys(found))


def _twice(wanted: DesiredState) -> Iterator[Refusal]:
    counts = Counter((entry.collection, entry.key) for entry in wanted.entries())
    for (collection, key), count in counts.items():
        if count > 1:
            yield refuse(f"{collection}: {key}", "occurs twice", "state it once")


def _management(
    wanted: DesiredState, observed: ObservedState, facts: ServerFacts
) -> Iterator[Refusal]:
    """Refuses a NIC through which the controller is reached."""
    nics = {bridge.nic for bridge in wanted.bridges}
    for nic in observed.nics:
        for address in nic.addresses:
            if nic.name in nics and address.split("/")[0] in facts.protected_addresses:
                yield refuse(
                    f"NIC {nic.name}",
                    f"carries {address}, through which this server reaches its controller",
                    "reach the controller over a NIC that is not in the plan",
                )
