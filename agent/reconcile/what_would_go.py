"""Finds the objects of others that would go with what steps remove of ours. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from placewire.agent.contract.entries import Address, Bridge, Queue, Shaper
from placewire.agent.contract.state import ForeignEntry, Ledger, ObservedState
from placewire.agent.reconcile.command_words import quoted
from placewire.agent.reconcile.foreign_kinds import OTHER_ROUTES, PORTS, SHAPERS
from placewire.agent.reconcile.goes_with import goes_with_address
from placewire.agent.reconcile.route_identity import identities, identity
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step


class Place(NamedTuple):
    """Something of ours that a step removes. kind: what it is called: bridge, NIC (for its queues),
    address or queue. name: of the bridge or NIC; else the entry's key."""

    kind: str
    name: str


def what_would_go(
    steps: Sequence[Step], observed: ObservedState, ledger: Ledger
) -> dict[Place, list[ForeignEntry]]:
    """By what the steps would remove, what of others would go with it."""
    on: dict[str, list[ForeignEntry]] = defaultdict(list)
    for entry in observed.foreign:
        on[entry.on or (entry.key if entry.collection in (PORTS, SHAPERS) else "")].append(entry)
    on.pop("", None)
    going = [step for step in steps if isinstance(step, EntryStep) and goes(step)]
    bridges = [step.before for step in going if isinstance(step.before, Bridge)]
    nics = {step.before.nic for step in going if isinstance(step.before, Shaper)}
    nics |= opened_anew(steps)
    # An ovs-vswitchd that was killed left these queues.
    nics |= {s.held.nic for s in steps if isinstance(s, NicStep) and s.direction == "back"} & {
        nic.name for nic in observed.nics if nic.left_by_switch
    }
    found: dict[Place, list[ForeignEntry]] = {}
    for nic in sorted(nics):
        beneath = [f for name, entries in on.items() for f in entries if _is_beneath(name, nic)]
        # Open vSwitch removes any discipline with our queues: one of others in their place, too.
        found[Place("NIC", nic)] = beneath
    for step in going:
        if isinstance(step.before, Queue) and step.before.nic not in nics:
            found[Place("queue", step.before.key)] = on[step.before.key]
    bare = _bare(steps, observed)
    with_address = {
        address: list(
            goes_with_address(
                address,
                [*on[address.interface], *_routes_from(address, observed, ledger)],
                is_last=address.interface in bare,
            )
        )
        for step in going
        if isinstance(address := step.before, Address)
    }
    for bridge in bridges:
        mine = [entries for a, entries in with_address.items() if a.interface == bridge.name]
        found[Place("bridge", bridge.name)] = [
            *on[bridge.name],
            *(f for f in on[bridge.nic] if f.collection == SHAPERS and bridge.nic not in nics),
            *(entry for entries in mine for entry in entries if entry.on != bridge.name),
        ]
    for address, entries in with_address.items():  # Also on a bridge that goes: it stays as well.
        found[Place("address", address.key)] = entries
    kept = {place: entries for place, entries in found.items() if entries}
    # A bridge whose NIC keeps its queues stays, though nothing is on the bridge itself.
    for bridge in bridges:
        if Place("NIC", bridge.nic) in kept:
            kept.setdefault(Place("bridge", bridge.name), [])
    return kept


def goes(step: EntryStep) -> bool:
    """Whether the entry is removed; a bridge also, where it is made anew on another datapath."""
    if isinstance(step.before, Bridge) and isinstance(step.after, Bridge):
        return bool(step.before.nic) and step.before.datapath != step.after.datapath
    return step.after is None


def opened_anew(steps: Sequence[Step]) -> set[str]:
    """The NICs that ovs-vswitchd is to open anew: their queues go and come back."""
    entry_steps = [step for step in steps if isinstance(step, EntryStep) and step.unopened]
    return {step.after.nic for step in entry_steps if isinstance(step.after, Bridge)}


def _is_beneath(name: str, nic: str) -> bool:
    """Whether `name` is the NIC, or one of its queues."""
    return name == nic or name.startswith(f"{nic} queue ")


def _bare(steps: Sequence[Step], observed: ObservedState) -> set[str]:
    """The interfaces that these steps leave without an IPv4 address."""
    changes = [s for s in steps if isinstance(s, EntryStep) and s.collection == Address.collection]
    gone = {step.before for step in changes if step.after is None}
    left = {a.interface for a in observed.addresses if a not in gone}
    left |= {s.after.interface for s in changes if isinstance(s.after, Address)}
    left |= {
        entry.on
        for entry in observed.foreign
        if entry.collection == "addresses" and ":" not in entry.key
    }
    return {address.interface for address in gone if isinstance(address, Address)} - left


def _routes_from(
    address: Address, observed: ObservedState, ledger: Ledger
) -> Iterator[ForeignEntry]:
    """Others' routes over no bridge of ours. None, while another interface has this very address as
    well: they then stay."""
    host = address.address.split("/")[0]
    elsewhere = (at.address for at in observed.addresses_elsewhere)
    held = (*(a for nic in observed.nics for a in nic.addresses), *elsewhere)
    if any(a.split("/")[0] == host for a in held):
        return
    own = identities(route for taken in ledger.nics for route in taken.routes)
    routes = (*(r for nic in observed.nics for r in nic.routes), *observed.routes_elsewhere)
    for route in dict.fromkeys(r for r in routes if identity(r) not in own):
        yield ForeignEntry(
            collection=OTHER_ROUTES,
            key=route,
            text=f"route {route}",
            remedy=f"ip route del {quoted(route)}",
        )
