"""Finds which NICs of a state that comes back may be taken again. Pure.

A NIC that was given back is its owner's, who may use it for something else. A state that is staged
is refused as a whole over such a NIC. One that comes back cannot be: a lease has run out, and
nobody may be there. The NIC is then left out, with all that would be on it, until it is free again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.state import (
    DesiredState,
    Ledger,
    NicFacts,
    ObservedState,
    Refusal,
    refuse,
)
from placewire.agent.reconcile.ledger import came_since, has_back, hosts, is_of, with_replaced_owed
from placewire.agent.reconcile.validate import ServerFacts, WayToController, refusals_to_take


class Admitted(NamedTuple):
    """state: the part of a state that can be made now. refused: why the NICs of the rest are not
    taken. ledger: without those of these NICs that are as they were; the others get back what they
    held. What replaced NICs held is owed."""

    state: DesiredState
    refused: tuple[Refusal, ...]
    ledger: Ledger


def admitted(
    desired: DesiredState,
    observed: ObservedState,
    ledger: Ledger,
    facts: ServerFacts,
    way: Callable[[], WayToController],
) -> Admitted:
    """way: called only where a NIC would be taken from its owner."""
    ledger = with_replaced_owed(observed, ledger)
    there = {nic.name: nic for nic in observed.nics}
    refused: dict[str, tuple[Refusal, ...]] = {}
    for bridge in desired.bridges:
        nic = there.get(bridge.nic)
        if nic is None or not _is_its_owners(nic, bridge, desired, observed, ledger):
            continue
        # Without a cable, the NIC is of as much use to us as to its owner.
        nics = (nic.model_copy(update={"carrier": None}), *_without(observed, nic.name))
        seen = observed.model_copy(update={"nics": nics})
        owed = _with_debts(nic, ledger)
        found = refusals_to_take(bridge, desired, seen, owed, facts, way())
        if found:
            refused[nic.name] = tuple(_said(nic.name, one) for one in found)
    forgotten = {
        taken.nic
        for taken in ledger.nics
        if taken.nic in refused and has_back(taken, there[taken.nic])
    }
    return Admitted(
        without_nics(desired, refused),
        tuple(one for found in refused.values() for one in found),
        ledger.model_copy(update={"nics": tuple(t for t in ledger.nics if t.nic not in forgotten)}),
    )


def without_unwritten(
    desired: DesiredState, known: Ledger, needed: Ledger, why: str
) -> tuple[DesiredState, tuple[Refusal, ...]]:
    """Returns the part of a state that can be made while the disk takes no ledger, and why the rest
    waits. known: what is on disk of the ledger. needed: the ledger for all of the state. why: what
    the disk said."""
    nics = {taken.nic for taken in needed.nics} - {taken.nic for taken in known.nics}
    names = {sysctl.name for sysctl in needed.sysctls} - {sysctl.name for sysctl in known.sysctls}
    part = without_nics(desired, nics)
    left = tuple(sysctl for sysctl in part.sysctls if sysctl.name in names)
    sysctls = tuple(sysctl for sysctl in part.sysctls if sysctl.name not in names)
    where = (*(f"NIC {nic}" for nic in sorted(nics)), *(f"sysctl {s.name}" for s in left))
    return part.model_copy(update={"sysctls": sysctls}), tuple(
        refuse(
            one,
            f"is left as it is, because what it is now could be lost: {why}",
            "see that the agent can write to its disk; the agent then goes on by itself",
        )
        for one in where
    )


def without_nics(desired: DesiredState, nics: Collection[str]) -> DesiredState:
    """The state without these NICs, their bridges and all that is on them."""
    if not nics:
        return desired
    bridges = {bridge.name for bridge in desired.bridges if bridge.nic in nics}
    gone = {*nics, *bridges}
    addresses = hosts(a.address for a in desired.addresses if a.interface in bridges)
    return desired.model_copy(
        update={
            "bridges": tuple(b for b in desired.bridges if b.nic not in nics),
            "addresses": tuple(a for a in desired.addresses if a.interface not in bridges),
            "sysctls": tuple(s for s in desired.sysctls if s.interface not in gone),
            "shapers": tuple(s for s in desired.shapers if s.nic not in nics),
            "queues": tuple(q for q in desired.queues if q.nic not in nics),
            "flows": tuple(f for f in desired.flows if f.bridge not in bridges),
            "classifiers": tuple(c for c in desired.classifiers if c.nic not in nics),
            "routes": tuple(r for r in desired.routes if r.interface not in bridges),
            "rules": tuple(r for r in desired.rules if r.source.split("/")[0] not in addresses),
        }
    )


def _is_its_owners(
    nic: NicFacts, bridge: Bridge, desired: DesiredState, observed: ObservedState, ledger: Ledger
) -> bool:
    """Whether nothing of ours is on the NIC: no bridge of ours has it, and the ledger does not, or
    a change that would have taken it ended before it touched the NIC, or somebody who took it out
    of our bridge has given it another address."""
    ours = {one.name: one.nic for one in observed.bridges}
    if ours.get(bridge.name) == nic.name:
        return False
    taken = next((taken for taken in ledger.nics if taken.nic == nic.name), None)
    if taken is None:
        return True
    given = {f"address {a.address}" for a in desired.addresses if a.interface == bridge.name}
    came = (one for one in came_since(taken, nic.standing) if one.startswith("address "))
    is_back = bridge.name not in ours and has_back(taken, nic)
    return is_back or any(one not in given for one in came)


def _with_debts(nic: NicFacts, ledger: Ledger) -> Ledger:
    """The ledger, to which also belongs what is owed to this NIC: queues of ours may be on it."""
    debts = tuple(debt for debt in ledger.owed if is_of(debt, nic))
    return ledger.model_copy(update={"nics": (*ledger.nics, *debts)})


def _without(observed: ObservedState, nic: str) -> tuple[NicFacts, ...]:
    return tuple(one for one in observed.nics if one.name != nic)


def _said(nic: str, refusal: Refusal) -> Refusal:
    where = f"NIC {nic}"
    what = "it" if refusal.where == where else refusal.where
    return refuse(where, f"is its owner's, and is not taken: {what} {refusal.what}", refusal.remedy)
