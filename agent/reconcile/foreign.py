"""Holds back the steps of a change that would take something away from other programs. Pure.

An operator may have added a port to a bridge of ours, or put a QoS of their own on its NIC.
Removing the bridge deletes that port and detaches that QoS; writing our QoS replaces theirs.

A request for such a change is refused, and the refusal says what to move first. An undo cannot be
refused: a lease has run out, and nobody may be there. Everything else is then undone, and these
steps are held back: the bridge stays with its NIC, both reach the network as before, and the
NIC's own addresses and routes stay on the bridge, where they work. On the NIC they would be cut
off, because it still is a port; without the NIC the foreign port would be cut off. The lease says
`failed` and what is in the way, and the agent tries again until that is gone.

The same holds where others have made something in the place of an entry of ours: a flow of its
match and priority (an add would overwrite theirs), a rule of its priority, a route of its table, a
filter among our preferences, a bridge or an interface of its name, another bridge over its NIC.
"""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.contract.entries import Address, Bridge, Classifier, Entry, Queue, Rule, Shaper
from placewire.agent.contract.state import Ledger, ObservedState, Refusal, refuse
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step

# Collections of a ForeignEntry on what is ours: the key is our bridge, or our NIC.
PORTS = "ports"
SHAPERS = "shapers"


def hold_back(
    steps: Sequence[Step], observed: ObservedState, ledger: Ledger
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """The steps that harm nobody, and the reasons why the others are held back."""
    bridges = _bridges_to_keep(steps, observed)
    shaped = {f.key: f.text for f in observed.foreign if f.collection == SHAPERS}
    wanted = [step.after for step in steps if isinstance(step, EntryStep)]
    nics = {entry.nic for entry in wanted if isinstance(entry, Shaper) and entry.nic in shaped}
    found = [
        refuse(
            f"bridge {name}",
            f"removing it would take away {' and '.join(texts)}, which is not ours",
            f"take that off {name} first, then ask again",
        )
        for name, texts in bridges.items()
    ]
    found += [
        refuse(
            f"NIC {nic}",
            f"our shaping would replace {shaped[nic]}, which is not ours",
            f"take it off first (ovs-vsctl clear port {nic} qos), then ask again",
        )
        for nic in sorted(nics)
    ]
    taken = _taken_places(steps, observed)
    found += [refusal for _, refusal in taken]
    kept = _kept_addresses({b.nic: b.name for b in observed.bridges if b.name in bridges}, ledger)
    blocked = [step for step, _ in taken]
    harmless = tuple(
        step for step in steps if step not in blocked and not _harms(step, set(bridges), nics, kept)
    )
    return harmless, tuple(dict.fromkeys(found))


def _taken_places(
    steps: Sequence[Step], observed: ObservedState
) -> list[tuple[EntryStep, Refusal]]:
    """The steps that would put an entry where others have put something."""
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
            if master not in (None, entry.name):
                text = f"{entry.nic} is a port of {master}"
        if text is not None:
            refusal = refuse(
                f"{entry.collection} {entry.key}",
                f"something that is not ours is in its place: {text}",
                "remove or move that; ours follows",
            )
            found.append((step, refusal))
    return found


def _place(entry: Entry) -> str:
    """The key of a ForeignEntry in the place of this entry."""
    if isinstance(entry, Rule):
        return str(entry.priority)
    return entry.nic if isinstance(entry, Classifier) else entry.key


def _bridges_to_keep(steps: Sequence[Step], observed: ObservedState) -> dict[str, list[str]]:
    """The bridges that the steps remove, each with what of others would go with it."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step, EntryStep) and step.after is None and isinstance(step.before, Bridge):
            places = {(PORTS, step.before.name), (SHAPERS, step.before.nic)}
            texts = [f.text for f in observed.foreign if (f.collection, f.key) in places]
            if texts:
                found[step.before.name] = texts
    return found


def _kept_addresses(bridge_of: dict[str, str], ledger: Ledger) -> set[tuple[str, str]]:
    """(bridge, address) of each address that a NIC itself had."""
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
