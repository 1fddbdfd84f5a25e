"""The difference between what a server should be and what it is, as ordered steps. Pure.

Order: everything that appears or changes, from the bridge outwards (a class exists before a flow
points to it), then everything that goes, in the opposite order. A NIC's own addresses leave it
after its bridge has them, and come back to it after the bridge is gone.

Where the kernel's classes of a NIC are not as the database has its queues, someone changed them
there. All of the shaping of that NIC is then replaced, though the database is right: its entries'
steps have equal before and after.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.contract.entries import (
    COLLECTIONS,
    Address,
    Bridge,
    Classifier,
    Entry,
    Queue,
    Shaper,
    Sysctl,
)
from agent.contract.state import (
    Collections,
    DesiredState,
    Ledger,
    NicFacts,
    ObservedState,
    TakenOver,
)
from agent.reconcile.canonical import canonical
from agent.reconcile.effective import drifted_nics
from agent.reconcile.steps import EntryStep, NicStep, Step

_NOTHING = Collections()


def difference(
    desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[Step, ...]:
    """Steps that make `observed` into `desired` (None: into nothing of ours); () when it is so.

    ledger: foreign values as they were before, for what `desired` no longer covers. Raises
    ValueError where an address of desired is not IPv4.
    """
    wanted: Collections = _NOTHING if desired is None else canonical(desired)
    appearing: list[Step] = []
    leaving: list[list[Step]] = []
    for kind in COLLECTIONS:
        name = kind.collection
        target = _by_key(getattr(wanted, name))
        current = _by_key(getattr(observed, name))
        appearing += _appearing(target, current, _drifted(wanted, observed))
        if kind is Address:
            appearing += _nics_to_bridges(wanted.bridges, observed.nics)
        if kind is Sysctl:
            leaving.append(_sysctls_back(target, current, ledger))
        else:
            leaving.append([EntryStep(e, None) for k, e in current.items() if k not in target])
    backwards = [step for group in reversed(leaving) for step in reversed(group)]
    return (*appearing, *backwards, *_nics_back(wanted.bridges, observed, ledger))


def extend_ledger(desired: DesiredState, observed: ObservedState, ledger: Ledger) -> Ledger:
    """The ledger that must be on disk before `desired` is applied: first values are kept."""
    known_nics = {taken.nic for taken in ledger.nics}
    known_sysctls = {sysctl.name for sysctl in ledger.sysctls}
    wanted_nics = {bridge.nic for bridge in desired.bridges}
    wanted_sysctls = {sysctl.name for sysctl in desired.sysctls}
    return Ledger(
        nics=ledger.nics
        + tuple(
            TakenOver(nic=n.name, addresses=n.address_commands, routes=n.routes, was_up=n.up)
            for n in observed.nics
            if n.name in wanted_nics and n.name not in known_nics
        ),
        sysctls=ledger.sysctls
        + tuple(
            sysctl
            for sysctl in observed.sysctls
            if sysctl.name in wanted_sysctls and sysctl.name not in known_sysctls
        ),
    )


def prune_ledger(desired: DesiredState | None, ledger: Ledger) -> Ledger:
    """Without what has been put back: what `desired`, now in force, does not cover."""
    if desired is None:
        return Ledger()
    nics = {bridge.nic for bridge in desired.bridges}
    names = {sysctl.name for sysctl in desired.sysctls}
    return Ledger(
        nics=tuple(taken for taken in ledger.nics if taken.nic in nics),
        sysctls=tuple(sysctl for sysctl in ledger.sysctls if sysctl.name in names),
    )


def watched_sysctls(desired: DesiredState | None, ledger: Ledger) -> frozenset[str]:
    names = {sysctl.name for sysctl in ledger.sysctls}
    return frozenset(names | {s.name for s in desired.sysctls} if desired else names)


def _by_key(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.key: entry for entry in entries}


def _appearing(
    target: dict[str, Entry], current: dict[str, Entry], drifted: frozenset[str]
) -> list[Step]:
    return [
        EntryStep(current.get(key), entry)
        for key, entry in target.items()
        if current.get(key) != entry
        or (isinstance(entry, (Shaper, Queue, Classifier)) and entry.nic in drifted)
    ]


def _drifted(wanted: Collections, observed: ObservedState) -> frozenset[str]:
    """NICs that have their shaper and keep one, and whose classes are not as their queues."""
    shaped = {s.nic for s in wanted.shapers} & {s.nic for s in observed.shapers}
    return drifted_nics(observed.queues, observed.effective_queues) & shaped


def _nics_to_bridges(bridges: tuple[Bridge, ...], nics: tuple[NicFacts, ...]) -> list[Step]:
    """For NICs that still hold addresses or routes of their own."""
    facts = {nic.name: nic for nic in nics}
    return [
        NicStep(
            "to bridge",
            bridge.name,
            TakenOver(
                nic=nic.name, addresses=nic.address_commands, routes=nic.routes, was_up=nic.up
            ),
        )
        for bridge in bridges
        if (nic := facts.get(bridge.nic)) is not None and (nic.addresses or nic.routes)
    ]


def _sysctls_back(
    target: dict[str, Entry], current: dict[str, Entry], ledger: Ledger
) -> list[Step]:
    """A sysctl cannot be removed: one that is no longer wanted gets its former value again. Those
    of our bridges' interfaces go with the interface, and never enter the ledger."""
    return [
        EntryStep(current[former.key], former)
        for former in ledger.sysctls
        if former.key not in target and former.key in current and current[former.key] != former
    ]


def _nics_back(bridges: tuple[Bridge, ...], observed: ObservedState, ledger: Ledger) -> list[Step]:
    wanted = {bridge.nic for bridge in bridges}
    ours = {bridge.nic: bridge.name for bridge in observed.bridges}
    facts = {nic.name: nic for nic in observed.nics}
    steps: list[Step] = []
    for taken in ledger.nics:
        nic = facts.get(taken.nic)
        if taken.nic in wanted or nic is None:
            continue
        whole = (
            set(taken.addresses) <= set(nic.address_commands)
            and set(taken.routes) <= set(nic.routes)
            and taken.was_up == nic.up
        )
        if taken.nic in ours or not whole:
            steps.append(NicStep("back", ours.get(taken.nic, ""), taken))
    return steps
