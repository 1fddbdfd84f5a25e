"""Finds drift: what other programs changed of the state in force, or a restart lost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from placewire.agent.contract.entries import Bridge, Classifier, Queue, Shaper, UnusedRow
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal
from placewire.agent.reconcile.dependence import needs
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.effective import Fault, faults
from placewire.agent.reconcile.hold_back import hold_back
from placewire.agent.reconcile.steps import EntryStep, Step


class Drift(NamedTuple):
    """steps: what heals the drift without taking anything from other programs. in_the_way: which
    settings of others keep the rest from being healed. faults: the kernel's classes that are not as
    asked, but for NICs whose opening settings of others keep from being healed; and NICs that are
    away. opening: subjects
    of the NICs that ovs-vswitchd is to open anew, also of those. A drift is falsy where nothing
    differs."""

    steps: tuple[Step, ...]
    in_the_way: tuple[Refusal, ...]
    faults: tuple[Fault, ...]
    opening: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.steps or self.in_the_way or self.faults)

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset(
            [*(subject_of(step) for step in self.steps), *(queues_of(f.nic) for f in self.faults)]
        )

    def subjects_on(self, bridges: Iterable[Bridge]) -> frozenset[str]:
        """The subjects of what is missing on these bridges and their NICs."""
        nics = {bridge.nic: bridge.name for bridge in bridges}
        missing = (step for step in self.steps if needs(step, nics.keys(), nics.values()))
        wrong = (fault.nic for fault in self.faults if fault.nic in nics)
        return frozenset([*map(subject_of, missing), *map(queues_of, wrong)])

    def without(self, subjects: Collection[str]) -> Drift:
        return self._replace(
            steps=tuple(step for step in self.steps if subject_of(step) not in subjects),
            faults=tuple(fault for fault in self.faults if queues_of(fault.nic) not in subjects),
        )

    def beyond(self, others: Drift) -> Drift:
        """This drift without the steps and faults of `others`."""
        return self._replace(
            steps=tuple(step for step in self.steps if step not in others.steps),
            faults=tuple(fault for fault in self.faults if fault not in others.faults),
        )

    def sentences(self) -> tuple[str, ...]:
        return (*self.due_sentences(), *(refusal.sentence for refusal in self.in_the_way))

    def due_sentences(self) -> tuple[str, ...]:
        return (
            *(step.due_sentence for step in self.steps),
            *(fault.sentence for fault in self.faults),
        )


NO_DRIFT = Drift((), (), ())


def find_drift(desired: DesiredState | None, observed: ObservedState, ledger: Ledger) -> Drift:
    due, away = _without_nics_away(difference(desired, observed, ledger), desired, observed)
    due, unknown = _without_unknown_nics(due, desired, observed, ledger)
    steps, in_the_way = hold_back(due, observed, ledger)
    opening = _opening_anew(due)
    stay_closed = opening - _opening_anew(steps)
    wrong = tuple(
        fault
        for fault in faults(desired.queues if desired else (), observed.effective_queues)
        if queues_of(fault.nic) not in stay_closed
    )
    return Drift(steps, in_the_way, (*away, *unknown, *wrong), opening)


def _without_nics_away(
    due: tuple[Step, ...], desired: DesiredState | None, observed: ObservedState
) -> tuple[tuple[Step, ...], tuple[Fault, ...]]:
    """The steps that need no NIC that is away, and what is to be told of those NICs."""
    wanted = desired.bridges if desired else ()
    nics = {bridge.nic for bridge in wanted} - {nic.name for nic in observed.nics}
    there = {bridge.name for bridge in observed.bridges if bridge.mtu_bytes}
    gone = {bridge.name for bridge in wanted if bridge.nic in nics} - there
    return (
        tuple(step for step in due if not needs(step, nics, gone)),
        tuple(Fault(nic, f"NIC {nic} is away") for nic in sorted(nics)),
    )


def _without_unknown_nics(
    due: tuple[Step, ...], desired: DesiredState | None, observed: ObservedState, ledger: Ledger
) -> tuple[tuple[Step, ...], tuple[Fault, ...]]:
    """The steps that take over no NIC whose former state the ledger does not have, and what is to
    be told of those NICs: one may have come back after the ledger was written, or while it was
    read. What is taken now could not be given back."""
    if desired is None:
        return due, ()
    there = {nic.name for nic in observed.nics}
    held = {taken.nic for taken in ledger.nics}
    former = {sysctl.name for sysctl in ledger.sysctls}
    unread = {s.interface for s in desired.sysctls if s.name not in former}
    unknown = {
        bridge.nic: bridge.name
        for bridge in desired.bridges
        if bridge.nic in there and (bridge.nic not in held or bridge.nic in unread)
    }
    return (
        tuple(step for step in due if not needs(step, unknown.keys(), set(unknown.values()))),
        tuple(
            Fault(nic, f"what NIC {nic} held before is not written down yet")
            for nic in sorted(unknown)
        ),
    )


def subject_of(step: Step) -> str:
    """Names the object of a step that two programs may fight over. All queues of a NIC are one
    subject, because they are written together."""
    if isinstance(step, EntryStep) and isinstance(step.entry, (Shaper, Queue, Classifier)):
        return queues_of(step.entry.nic)
    if isinstance(step, EntryStep) and isinstance(step.entry, UnusedRow):
        return step.entry.collection  # Each row has a new name.
    change = step.as_change()
    return f"{change.collection} {change.key}"


def _opening_anew(steps: Iterable[Step]) -> frozenset[str]:
    """The subjects of the bridges whose NIC ovs-vswitchd is to open anew, and of the NIC's queues,
    which it makes anew with that."""
    bridges = (step.entry for step in steps if isinstance(step, EntryStep) and step.unopened)
    return frozenset(
        subject
        for bridge in bridges
        if isinstance(bridge, Bridge)
        for subject in (f"{bridge.collection} {bridge.key}", queues_of(bridge.nic))
    )


def queues_of(nic: str) -> str:
    return f"queues of {nic}"


def switch_is_away(desired: DesiredState, observed: ObservedState) -> bool:
    """Whether ovs-vswitchd does not run: the database has bridges of this state, and the kernel the
    interface of none. Nothing can be healed before it runs."""
    wanted = {bridge.name for bridge in desired.bridges}
    ours = [bridge for bridge in observed.bridges if bridge.name in wanted]
    return bool(ours) and all(bridge.mtu_bytes == 0 for bridge in ours)
