"""What a change would take away from others, and what of theirs is in the place of ours. Pure.

An operator may have added a port to a bridge of ours, or put a QoS of their own on its NIC.
Removing the bridge deletes the one, and detaches the other; writing our QoS replaces theirs.

Whoever asks for such a change is refused, and told what to move first. Undoing cannot be refused:
a lease has run out, and nobody may be there. Then everything else is undone, and these steps are
held back: the bridge stays with its NIC, both reach the network as before, and the addresses and
routes that the NIC itself had stay on the bridge, where they work. Moving them to the NIC would cut
them off (it still is a port), and taking the NIC out would cut off the foreign port. The lease says
`failed` with what is in the way, and it is tried again until that is gone.

The same holds for what others have made where ours would be: a flow with its match and priority (an
add would overwrite theirs), a rule of its priority, a route of its table, a filter among our
preferences, a bridge or an interface of its name, a NIC that became another bridge's port.
"""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.contract.entries import Address, Bridge, Classifier, Entry, Queue, Rule, Shaper
from placewire.agent.contract.state import Ledger, ObservedState, Refusal
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step

# `collection` of a ForeignEntry: key is our bridge, or our NIC.
PORTS = "ports"
SHAPERS = "shapers"


def hold_back(
    steps: Sequence[Step], observed: ObservedState, ledger: Ledger
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps that harm nobody, and why the others do."""
    bridges = _bridges_to_keep(steps, observed)
    shaped = {f.key: f.text for f in observed.foreign if f.collection == SHAPERS}
    nics = {
        step.after.nic
        for step in steps
        if isinstance(step, EntryStep)
        and isinstance(step.after, Shaper)
        and step.after.nic in shaped
    }
    found = [
        Refusal(
            what=f"removing it would take away {' and '.join(texts)}, which is not ours",
            where=f"bridge {name}",
            remedy=f"take that off {name} first, then ask again",
        )
        for name, texts in bridges.items()
    ]
    found += [
        Refusal(
            what=f"our shaping would replace {shaped[nic]}, which is not ours",
            where=f"NIC {nic}",
            remedy=f"take it off first (ovs-vsctl clear port {nic} qos), then ask again",
        )
        for nic in sorted(nics)
    ]
    kept = _kept_addresses({b.nic: b.name for b in observed.bridges if b.name in bridges}, ledger)
    taken = taken_places(steps, observed)
    found += [refusal for _, refusal in taken]
    harmless = [step for step in steps if not _harms(step, set(bridges), nics, kept)]
    blocked = [step for step, _ in taken]
    return tuple(step for step in harmless if step not in blocked), tuple(dict.fromkeys(found))


def taken_places(steps: Sequence[Step], observed: ObservedState) -> list[tuple[EntryStep, Refusal]]:
    """Steps that put something where others have put theirs."""
    texts = {(f.collection, f.key): f.text for f in observed.foreign}
    ports = {nic.name: nic.bridge for nic in observed.nics}
    found = []
    for step in steps:
        if not isinstance(step, EntryStep) or step.after is None or step.collection == SHAPERS:
            continue
        entry = step.after
        text = texts.get((entry.collection, _place(entry)))
        if text is None and isinstance(entry, Bridge):
            master = ports.get(entry.nic)
            text = (
                f"{entry.nic} is a port of {master}" if master not in (None, entry.name) else None
            )
        if text is not None:
            what = f"something that is not ours is in its place: {text}"
            where = f"{entry.collection} {entry.key}"
            refusal = Refusal(what=what, where=where, remedy="remove or move that; ours follows")
            found.append((step, refusal))
    return found


def _place(entry: Entry) -> str:
    """Under which key a foreign object in the place of this entry is observed."""
    if isinstance(entry, Rule):
        return str(entry.priority)
    return entry.nic if isinstance(entry, Classifier) else entry.key


def _bridges_to_keep(steps: Sequence[Step], observed: ObservedState) -> dict[str, list[str]]:
    """Bridges that the steps remove, with what of others would go with them."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step, EntryStep) and step.after is None and isinstance(step.before, Bridge):
            places = {(PORTS, step.before.name), (SHAPERS, step.before.nic)}
            texts = [f.text for f in observed.foreign if (f.collection, f.key) in places]
            if texts:
                found[step.before.name] = texts
    return found


def _kept_addresses(bridge_of: dict[str, str], ledger: Ledger) -> set[tuple[str, str]]:
    """(bridge, address) of what the NICs themselves had."""
    return {
        (bridge_of[taken.nic], address.split()[0])
        for taken in ledger.nics
        if taken.nic in bridge_of
        for address in taken.addresses
    }


def _harms(step: Step, bridges: set[str], nics: set[str], addresses: set[tuple[str, str]]) -> bool:
    if isinstance(step, NicStep):
        return step.direction == "back" and step.bridge in bridges
    if step.after is None:
        gone = step.before
        if isinstance(gone, Address):
            return (gone.interface, gone.address) in addresses
        return isinstance(gone, Bridge) and gone.name in bridges
    return isinstance(step.after, (Shaper, Queue, Classifier)) and step.after.nic in nics
