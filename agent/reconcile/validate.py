"""Finds why a desired state cannot be applied to a server, before anything is touched. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from placewire.agent.contract.capabilities import TrafficControl
from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal, refuse
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.interface_rules import bridges_over
from placewire.agent.reconcile.protected import protected_names
from placewire.agent.reconcile.refusals_addresses import address_refusals
from placewire.agent.reconcile.refusals_held import named_refusals
from placewire.agent.reconcile.refusals_nics import (
    bridge_refusals,
    management_refusals,
    sysctl_refusals,
    unknown_way_refusals,
)
from placewire.agent.reconcile.refusals_queues import (
    kernel_refusals,
    queue_refusals,
    speed_refusals,
    steering_refusals,
)
from placewire.agent.reconcile.refusals_routing import routing_refusals
from placewire.agent.reconcile.refusals_switch import switch_refusals

UNKNOWN_KERNEL = TrafficControl()


@dataclass(frozen=True)
class ServerFacts:
    """What the checks need to know of the server beside its observed state, and what stays the same
    while the agent runs.

    open_vswitch_version   for example (3, 1)
    protected              names of interfaces that are never touched, alternative ones too
    """

    server: str
    datapath: str
    open_vswitch_version: tuple[int, ...]
    protected: frozenset[str]
    traffic_control: TrafficControl = UNKNOWN_KERNEL


@dataclass(frozen=True)
class WayToController:
    """By what this server reaches its controller now. A name server is asked for it, which may be
    slow or away, so that only what takes a NIC over may ask.

    addresses   this server's (a.b.c.d) that must keep working
    interfaces  those by which packets leave for the controller
    unknown_to  the controller's URL while there are neither; any NIC may be the way then
    """

    addresses: frozenset[str]
    interfaces: frozenset[str] = frozenset()
    unknown_to: str = ""


def refusals(
    desired: DesiredState,
    observed: ObservedState,
    ledger: Ledger,
    facts: ServerFacts,
    way: WayToController,
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
    found = [
        *switch_refusals(facts.open_vswitch_version),
        *_twice(wanted),
        *_nic_refusals(wanted, observed, ledger, facts, way),
        *_named_refusals(wanted, observed, ledger),
        *unknown_way_refusals(wanted, ledger, way.unknown_to),
        *address_refusals(wanted, observed, ledger, way.addresses),
        *sysctl_refusals(wanted, protected_names(facts.protected, observed.nics)),
        *queue_refusals(wanted, facts.open_vswitch_version),
        *kernel_refusals(wanted, facts.traffic_control),
        *speed_refusals(wanted, observed),
        *steering_refusals(wanted, observed),
        *routing_refusals(wanted, observed),
    ]
    return tuple(dict.fromkeys(found))


def refusals_to_take(
    bridge: Bridge,
    desired: DesiredState,
    observed: ObservedState,
    ledger: Ledger,
    facts: ServerFacts,
    way: WayToController,
) -> tuple[Refusal, ...]:
    """Why this bridge of `desired` cannot take its NIC, or have its addresses; empty where it
    can."""
    addresses = tuple(a for a in desired.addresses if a.interface == bridge.name)
    alone = desired.model_copy(update={"addresses": addresses})
    with_it = alone.model_copy(update={"bridges": (bridge,)})
    return (
        *_nic_refusals(with_it, observed, ledger, facts, way),
        *address_refusals(alone, observed, ledger, way.addresses),
    )


def _nic_refusals(
    wanted: DesiredState,
    observed: ObservedState,
    ledger: Ledger,
    facts: ServerFacts,
    way: WayToController,
) -> Iterator[Refusal]:
    taken = {nic.nic for nic in ledger.nics}
    protected = protected_names(facts.protected, observed.nics)
    yield from bridge_refusals(wanted, observed, facts.datapath, protected, taken)
    yield from management_refusals(wanted, observed, way.addresses, way.interfaces)


def _named_refusals(
    wanted: DesiredState, observed: ObservedState, ledger: Ledger
) -> Iterator[Refusal]:
    """Only for NICs that are not taken over yet: to refuse the others would not make their rules
    work again, and would keep every change from a server whose agent did not look for them before.
    """
    taken = {nic.nic for nic in ledger.nics}
    over = bridges_over({bridge.nic: bridge.name for bridge in wanted.bridges}, observed)
    for nic in observed.nics:
        if nic.name in over and nic.name not in taken:
            yield from named_refusals(nic, over, observed)


def _twice(wanted: DesiredState) -> Iterator[Refusal]:
    counts = Counter((entry.collection, entry.key) for entry in wanted.entries())
    for (collection, key), count in counts.items():
        if count > 1:
            yield refuse(f"{collection}: {key}", "occurs twice", "state it once")
