"""What of the state in force others have changed, or a restart has lost. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from placewire.agent.contract.entries import Classifier, Queue, Shaper, UnusedRow
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.effective import Fault, faults
from placewire.agent.reconcile.foreign import hold_back
from placewire.agent.reconcile.steps import EntryStep, Step


class Drift(NamedTuple):
    """steps: what would put it right, and harms nobody. in_the_way: what of others keeps the rest
    from being put right. faults: classes of the kernel that are not as asked. Falsy where all is as
    wanted."""

    steps: tuple[Step, ...]
    in_the_way: tuple[Refusal, ...]
    faults: tuple[Fault, ...]

    def __bool__(self) -> bool:
        return bool(self.steps or self.in_the_way or self.faults)

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset(
            [*(subject_of(step) for step in self.steps), *(queues_of(f.nic) for f in self.faults)]
        )

    def without(self, subjects: Collection[str]) -> Drift:
        return Drift(
            tuple(step for step in self.steps if subject_of(step) not in subjects),
            self.in_the_way,
            tuple(fault for fault in self.faults if queues_of(fault.nic) not in subjects),
        )

    def beyond(self, others: Drift) -> Drift:
        """What of this is not in `others`."""
        return Drift(
            tuple(step for step in self.steps if step not in others.steps),
            self.in_the_way,
            tuple(fault for fault in self.faults if fault not in others.faults),
        )

    def sentences(self) -> tuple[str, ...]:
        return (*self.due_sentences(), *told_in_the_way(self.in_the_way))

    def due_sentences(self) -> tuple[str, ...]:
        changes = [step.as_change() for step in self.steps]
        return (
            *(f"{c.action} {c.collection} {c.key} is due" for c in changes),
            *(fault.sentence for fault in self.faults),
        )


def told_in_the_way(found: Collection[Refusal]) -> tuple[str, ...]:
    return tuple(f"{refusal.where}: {refusal.what}; {refusal.remedy}" for refusal in found)


def find_drift(desired: DesiredState | None, observed: ObservedState, ledger: Ledger) -> Drift:
    steps, in_the_way = hold_back(difference(desired, observed, ledger), observed, ledger)
    return Drift(
        steps, in_the_way, faults(desired.queues if desired else (), observed.effective_queues)
    )


def subject_of(step: Step) -> str:
    """What a step is about, as one thing that somebody may fight over. The queues of a NIC are one:
    they are written together."""
    if isinstance(step, EntryStep) and isinstance(step.entry, (Shaper, Queue, Classifier)):
        return queues_of(step.entry.nic)
    if isinstance(step, EntryStep) and isinstance(step.entry, UnusedRow):
        return step.entry.collection  # each has a name of its own
    change = step.as_change()
    return f"{change.collection} {change.key}"


def queues_of(nic: str) -> str:
    return f"queues of {nic}"


def switch_is_away(desired: DesiredState, observed: ObservedState) -> bool:
    """Whether the database has bridges of ours, and the kernel no interface of any of them:
    ovs-vswitchd does not run. Nothing can be put right before it does."""
    wanted = {bridge.name for bridge in desired.bridges}
    ours = [bridge for bridge in observed.bridges if bridge.name in wanted]
    return bool(ours) and all(bridge.mtu_bytes == 0 for bridge in ours)
