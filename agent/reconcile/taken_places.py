"""Finds the steps that would put an entry where others have put something. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.agent.contract.entries import Bridge, Classifier, Entry, Rule
from placewire.agent.contract.state import ObservedState, Refusal, refuse
from placewire.agent.reconcile.foreign_kinds import RECEIVERS, SHAPERS
from placewire.agent.reconcile.steps import EntryStep, Step


def taken_places(steps: Sequence[Step], observed: ObservedState) -> list[tuple[EntryStep, Refusal]]:
    """The steps that would put an entry where others have put something."""
    taken = {(f.collection, f.key): f for f in observed.foreign}
    ports = {nic.name: nic.bridge for nic in observed.nics}
    ours = {bridge.name: bridge.nic for bridge in observed.bridges}
    found = []
    for step in steps:
        if not isinstance(step, EntryStep) or step.after is None or step.collection == SHAPERS:
            continue
        entry = step.after
        foreign = taken.get((entry.collection, _place(entry)))
        text, remedy = foreign and foreign.text, foreign and foreign.remedy
        if text is None and isinstance(entry, Bridge):
            master = ports.get(entry.nic)
            if master not in (None, entry.name):
                text = f"{entry.nic} is a port of {master}"
            opens = step.unopened or ours.get(entry.name) != entry.nic
            receiver = taken.get((RECEIVERS, entry.nic)) if opens else None
            if text is None and receiver is not None:
                refusal = refuse(
                    f"NIC {entry.nic}",
                    f"Open vSwitch would take {receiver.text} off it when it opens the NIC, which "
                    "is not ours",
                    f"remove or move that ({receiver.remedy}); ours follows",
                )
                found.append((step, refusal))
        if text is not None:
            refusal = refuse(
                f"{entry.collection} {entry.key}",
                f"something that is not ours is in its place: {text}",
                f"remove or move that{f' ({remedy})' if remedy else ''}; ours follows",
            )
            found.append((step, refusal))
    return found


def _place(entry: Entry) -> str:
    """The key of a ForeignEntry in the place of this entry."""
    if isinstance(entry, Rule):
        return str(entry.priority)
    return entry.nic if isinstance(entry, Classifier) else entry.key
