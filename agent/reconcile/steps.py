"""A step: one typed change of one server, which drivers execute and reports and audit log show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from placewire.agent.contract.entries import Entry
from placewire.agent.contract.state import Change, TakenOver


@dataclass(frozen=True)
class EntryStep:
    """An entry that appears (before None), changes, or goes (after None).

    with_it: what of ours bears no mark and may go with a bridge or address that is removed:
    addresses (a.b.c.d/len) and routes (as `ip route` prints them). Drivers remove nothing that has
    anything else on it.

    mark: what a bridge that appears or changes says that its NIC held; None leaves it as it is.

    unopened: why the NIC of this bridge is to be opened anew by ovs-vswitchd; "": it is not.
    """

    before: Entry | None
    after: Entry | None
    with_it: tuple[str, ...] = ()
    mark: TakenOver | None = None
    unopened: str = ""

    @property
    def entry(self) -> Entry:
        entry = self.after if self.after is not None else self.before
        assert entry is not None
        return entry

    @property
    def collection(self) -> str:
        return self.entry.collection

    @property
    def action(self) -> Literal["add", "replace", "remove"]:
        if self.before is None:
            return "add"
        return "remove" if self.after is None else "replace"

    @property
    def due_sentence(self) -> str:
        due = self.as_change().due_sentence
        return f"{due}: {self.unopened}" if self.unopened else due

    def as_change(self) -> Change:
        return Change(
            action=self.action,
            collection=self.collection,
            key=self.entry.key,
            before=None if self.before is None else self.before.model_dump_json(),
            after=None if self.after is None else self.after.model_dump_json(),
        )


@dataclass(frozen=True)
class NicStep:
    """A NIC's own addresses and routes move to its bridge, or back to the NIC.

    held: what the NIC has while it is no port: before the move to the bridge, after the move back.
    """

    collection: ClassVar[str] = "nics"
    direction: Literal["to bridge", "back"]
    bridge: str
    held: TakenOver

    @property
    def due_sentence(self) -> str:
        return self.as_change().due_sentence

    def as_change(self) -> Change:
        alone, under = self.held.model_dump_json(), f'{{"bridge":"{self.bridge}"}}'
        before, after = (alone, under) if self.direction == "to bridge" else (under, alone)
        return Change(
            action="replace", collection="nics", key=self.held.nic, before=before, after=after
        )


Step = EntryStep | NicStep
