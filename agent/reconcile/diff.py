"""Computes the ordered steps that turn an observed state of a server into a desired one. Pure.

Order: first everything that appears or changes, from the bridge outwards (a class exists before a
flow points to it), then everything that goes, in the opposite order. A NIC's own addresses leave
the NIC after its bridge has them, and come back after the bridge is gone.

A step with equal before and after brings up a bridge that is down, or whose NIC is down, or writes
the mark of a bridge anew that does not tell what the ledger does, or has ovs-vswitchd open its NIC
anew: a NIC that was deleted and made anew is not opened by itself on the userspace datapath; of an
address, it makes the route of its subnet again that somebody removed. The steps of bridges
also replace all the shaping of that NIC, and of one whose classes in the kernel are not as
the database has its queues: somebody changed the classes, though the database is right.

The routes and IPv6 addresses that a NIC had when it was taken over stay on its bridge while that is
in force. Where the bridge's interface was made anew, they went with it and are put back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from placewire.agent.contract.entries import (
    COLLECTIONS,
    Address,
    Bridge,
    Classifier,
    Entry,
    Queue,
    Shaper,
    Sysctl,
)
from placewire.agent.contract.state import (
    Collections,
    DesiredState,
    Ledger,
    NicFacts,
    ObservedState,
    TakenOver,
)
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.effective import drifted_nics
from placewire.agent.reconcile.ledger import (
    givable,
    has_back,
    is_of,
    is_replaced,
    marked_as_held,
    stays_up_for,
    tells_all,
)
from placewire.agent.reconcile.route_identity import identities, identity, is_of_v6
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step


def difference(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[Step, ...]:
    """The steps that turn `observed` into `desired` (None: nothing of Placewire's is left).

    ledger: former values of others, which come back where `desired` no longer covers them. Raises
    ValueError where an address of `desired` is not IPv4.
    """
    wanted = Collections() if desired is None else canonical(desired)
    marks = {b.name: marked_as_held(b, wanted, ledger) for b in wanted.bridges}
    unopened = unopened_ports(wanted, observed)
    broken = _drifted(wanted, observed) | _down(wanted, observed) | _mismarked(marks, observed)
    broken |= set(observed.unrouted)
    broken |= {name for bridge in wanted.bridges if bridge.name in unopened
               for name in (bridge.name, bridge.nic)}  # fmt: skip
    appearing: list[Step] = []
    leaving: list[list[Step]] = []
    for kind in COLLECTIONS:
        target = _by_key(getattr(wanted, kind.collection))
        current = _by_key(getattr(observed, kind.collection))
        of_bridges = (marks, unopened) if kind is Bridge else ({}, {})
        appearing += _appearing(target, current, broken, *of_bridges)
        if kind is Address:
            appearing += _nics_to_bridges(wanted, observed, ledger)
        if kind is Sysctl:
            leaving.append(_sysctls_back(target, current, observed, ledger))
        else:
            leaving.append([_leaving(e, ledger) for k, e in current.items() if k not in target])
    leaving.append([EntryStep(row, None) for row in observed.unused_rows])
    backwards = [step for group in reversed(leaving) for step in reversed(group)]
    return (*appearing, *backwards, *_nics_back(wanted.bridges, observed, ledger))


def _by_key(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.key: entry for entry in entries}


def _appearing(
    target: dict[str, Entry],
    current: dict[str, Entry],
    broken: frozenset[str],
    marks: Mapping[str, TakenOver | None],
    unopened: Mapping[str, str],
) -> list[Step]:
    """broken: names of NICs and bridges that are not as the database says, and keys of addresses
    without the route of their subnet. marks, unopened: by key."""
    return [
        EntryStep(current.get(key), entry, mark=marks.get(key), unopened=unopened.get(key, ""))
        for key, entry in target.items()
        if current.get(key) != entry
        or (isinstance(entry, (Shaper, Queue, Classifier)) and entry.nic in broken)
        or (isinstance(entry, Bridge) and entry.name in broken)
        or (isinstance(entry, Address) and entry.key in broken)
    ]


def _leaving(entry: Entry, ledger: Ledger) -> EntryStep:
    if not isinstance(entry, (Bridge, Address)):
        return EntryStep(entry, None)
    name = entry.name if isinstance(entry, Bridge) else entry.interface
    given = (a.address for a in ledger.addresses if a.interface == name)
    # Those of the NIC too, where an agent ended before it had moved them.
    routes = (r for taken in ledger.nics if taken.bridge == name for r in taken.routes)
    moved = (*moved_v6(name, ledger), *moved_routes(name, ledger))
    return EntryStep(entry, None, (*given, *moved, *routes))


def _down(wanted: Collections, observed: ObservedState) -> frozenset[str]:
    """Bridges whose interface or NIC exists and is down."""
    nics = {nic.name for nic in observed.nics if not nic.up}
    names = (b.name for b in wanted.bridges if b.nic in nics or b.name in observed.bridges_down)
    return frozenset(names)


def unopened_ports(wanted: Collections, observed: ObservedState) -> dict[str, str]:
    """By bridge that keeps its NIC as its port: why ovs-vswitchd must open that anew."""
    ports = {bridge.name: bridge.nic for bridge in observed.bridges}
    told = {one.nic: one.sentence for one in observed.unopened}
    return {
        bridge.name: told[bridge.nic]
        for bridge in wanted.bridges
        if bridge.nic in told and ports.get(bridge.name) == bridge.nic
    }


def _mismarked(marks: Mapping[str, TakenOver | None], observed: ObservedState) -> frozenset[str]:
    """Bridges whose mark does not tell what it must: a change of the plan's addresses or another
    adapter outdates it, and an agent of version 0.1.0 made none. Only those whose NIC is there:
    without it no bridge can be written."""
    found = {held.bridge: held for held in observed.held}
    there = {nic.name for nic in observed.nics}
    return frozenset(
        name
        for name, mark in marks.items()
        if mark is not None and mark.nic in there and not tells_all(found.get(name), mark)
    )


def _drifted(wanted: Collections, observed: ObservedState) -> frozenset[str]:
    """NICs that have a shaper and keep one, but whose classes are not as their queues."""
    shaped = {s.nic for s in wanted.shapers} & {s.nic for s in observed.shapers}
    return drifted_nics(observed.queues, observed.effective_queues) & shaped


def _nics_to_bridges(wanted: Collections, observed: ObservedState, ledger: Ledger) -> list[Step]:
    """Moves what NICs still hold of their own to their bridges, and puts back what was lost there:
    routes, and IPv6 addresses, which no desired state has."""
    facts = {nic.name: nic for nic in observed.nics}
    taken_over = {taken.nic: taken for taken in ledger.nics}
    steps: list[Step] = []
    for bridge in wanted.bridges:
        nic = facts.get(bridge.nic)
        if nic is None:
            continue
        taken = taken_over.get(nic.name)
        ours = {a.address for a in wanted.addresses if a.interface == bridge.name}
        on_it = {a.address for a in observed.moved_addresses if a.interface == bridge.name}
        addresses, routes = _to_move(nic, taken, ours)
        lost_v6 = tuple(
            address
            for address in (taken.addresses if taken else ())
            if is_of_v6(address) and address.split()[0] not in {*nic.addresses, *on_it}
        )
        on_nic, on_bridge = identities(nic.routes), identities(observed.bridge_routes)
        lost = tuple(
            route
            for route in (givable(taken, observed).routes if taken else ())
            if identity(route) not in on_nic
            and identity(over_bridge(route, nic.name, bridge.name)) not in on_bridge
        )
        if addresses or routes or lost or lost_v6:
            # In the order in which the NIC had them: a gateway's subnet before the gateway's route.
            both = identities((*routes, *lost))
            ordered = tuple(r for r in (taken.routes if taken else routes) if identity(r) in both)
            held = TakenOver(
                nic=nic.name, addresses=(*addresses, *lost_v6), routes=ordered, was_up=nic.up
            )
            steps.append(NicStep("to bridge", bridge.name, held))
    return steps


def _to_move(
    nic: NicFacts, taken: TakenOver | None, ours: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The addresses and routes of a NIC that move to its bridge: all when it is taken over; later
    only those that it had then, and its bridge's. What others gave it since is theirs."""
    if taken is None:
        return nic.address_commands, nic.routes
    known = {*ours, *(address.split()[0] for address in taken.addresses)}
    held = identities(taken.routes)
    return (
        tuple(a for a in nic.address_commands if a.split()[0] in known),
        tuple(r for r in nic.routes if identity(r) in held),
    )


def over_bridge(route: str, nic: str, bridge: str) -> str:
    """The NIC's route, as `ip route` prints it, led over the bridge instead."""
    words = route.split()
    at = words.index("dev") + 1
    return " ".join([*words[:at], bridge if words[at] == nic else words[at], *words[at + 1 :]])


def moved_routes(bridge: str, ledger: Ledger) -> tuple[str, ...]:
    """The routes of the NIC that the bridge has taken over, as they are over the bridge."""
    return tuple(
        over_bridge(route, taken.nic, bridge)
        for taken in ledger.nics
        if taken.bridge == bridge
        for route in taken.routes
    )


def moved_v6(bridge: str, ledger: Ledger) -> tuple[str, ...]:
    """The IPv6 addresses, with their lengths, of the NIC that the bridge has taken over."""
    return tuple(
        address.split()[0]
        for taken in ledger.nics
        if taken.bridge == bridge
        for address in taken.addresses
        if is_of_v6(address)
    )


def _sysctls_back(
    target: dict[str, Entry], current: dict[str, Entry], observed: ObservedState, ledger: Ledger
) -> list[Step]:
    """A sysctl cannot be removed: one that is no longer wanted gets its former value back. Those of
    bridges' interfaces go with the interface, and never enter the ledger. Those of another adapter
    that has a NIC's name by now are its owner's."""
    replaced = {taken.nic for taken in ledger.nics if is_replaced(taken, observed)}
    return [
        EntryStep(current[former.key], former)
        for former in ledger.sysctls
        if former.key not in target
        and former.interface not in replaced
        and former.key in current
        and current[former.key] != former
    ]


def _nics_back(bridges: tuple[Bridge, ...], observed: ObservedState, ledger: Ledger) -> list[Step]:
    wanted = {bridge.nic for bridge in bridges}
    ours = {bridge.nic: bridge.name for bridge in observed.bridges}
    facts = {nic.name: nic for nic in observed.nics}
    steps: list[Step] = []
    for held in ledger.nics:
        taken, nic = givable(held, observed), facts.get(held.nic)
        if taken.nic in wanted or nic is None:
            continue  # One that is away will be owed what it held.
        free = is_of(taken, nic) and nic.bridge is None
        if taken.nic in ours or (free and not has_back(taken, nic)):
            # A port of ours is the NIC, though its MAC address may have changed meanwhile.
            up = taken.was_up or bool(stays_up_for(taken, nic))
            back = taken.model_copy(update={"mac": nic.mac, "was_up": up})
            steps.append(NicStep("back", ours.get(taken.nic, ""), back))
    return steps
