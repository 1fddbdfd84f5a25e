"""Applies the difference between a state and the network, and reads back until it shows."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import NamedTuple

from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal
from placewire.agent.keep.context import Context, Taken
from placewire.agent.keep.outcome import NotAsAppliedError, text_of
from placewire.agent.reconcile.dependence import by_nic, needs_switch
from placewire.agent.reconcile.diff import unopened_ports
from placewire.agent.reconcile.drift import Drift, find_drift
from placewire.agent.reconcile.effects import EffectError, NoAnswerError
from placewire.agent.reconcile.not_as_before import (
    given_back,
    lost_route_sentences,
    second_address_sentences,
    stays_up_sentences,
)
from placewire.agent.reconcile.steps import Step

log = logging.getLogger(__name__)

READ_BACK_PAUSE_SECONDS = 0.1


class Applied(NamedTuple):
    """steps: those that were taken. observed: the network as it was read back, whole. told: what is
    otherwise than it was before Placewire, and why; else ""."""

    steps: tuple[Step, ...]
    observed: ObservedState
    told: str = ""


def observe_opened(context: Context, desired: DesiredState | None, ledger: Ledger) -> ObservedState:
    """Reads the network, again and again for a while where ovs-vswitchd does not have a NIC of
    `desired` open: one that starts opens its NICs by itself, a moment later. Raises
    UnreadableError."""
    deadline = time.monotonic() + context.read_back_seconds
    observed = context.observe(desired, ledger)
    while desired and unopened_ports(desired, observed) and time.monotonic() < deadline:
        time.sleep(READ_BACK_PAUSE_SECONDS)
        observed = context.observe(desired, ledger)
    return observed


def apply_whole(
    context: Context,
    desired: DesiredState | None,
    ledger: Ledger,
    event: str,
    observed: ObservedState | None = None,
) -> Applied:
    """Makes the network as `desired` says (None: as it was before Placewire). Raises EffectError,
    NotAsAppliedError.

    event: its name in the audit log. A stage that cannot be written to the audit log is not done;
    every other event is. observed: the network, where it was read a moment ago.
    """
    if observed is None:
        observed = observe_opened(context, desired, ledger)
    steps = find_drift(desired, observed, ledger).steps
    try:
        _apply(context, steps, desired, event)
    except Exception as error:
        if event == "stage":  # Nothing of it stays.
            raise
        _apply_apart(context, desired, ledger, event, error)
    left, observed = _read_back(context, desired, ledger, leave=())
    if left:
        is_due = bool(left.steps) and not left.in_the_way
        raise NotAsAppliedError(_text_of(left), steps, is_due=is_due)
    now_unix = context.memory.told_unix()
    stays_up = stays_up_sentences(desired, observed, ledger, now_unix)
    lost = lost_route_sentences(desired, observed, ledger)
    second = second_address_sentences(given_back(desired, observed, ledger), observed)
    told = "; ".join((*stays_up, *lost, *second))
    if told:
        event = "stays up" if stays_up else "lost" if lost else "second"
        context.memory.note(event, (), detail=told)
        log.warning("%s", told)
    return Applied(steps, observed, told)


def apply_all_but(
    context: Context, taken: Taken, leave: Collection[str]
) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
    """Heals all but the subjects in `leave` (see drift.subject_of). Returns the steps done, and why
    other programs keep the rest from being healed. Raises EffectError, NotAsAppliedError."""
    steps = _drift(context, taken.state, taken.ledger, leave)[0].steps
    try:
        _apply(context, steps, taken.state, "heal")
    except Exception as error:
        _apply_apart(context, taken.state, taken.ledger, "heal", error, leave)
    left, _ = _read_back(context, taken.state, taken.ledger, leave)
    if left.steps or left.faults:
        raise NotAsAppliedError(_text_of(left))
    return steps, (*taken.refused, *left.in_the_way)


def _apply(
    context: Context,
    steps: tuple[Step, ...],
    desired: DesiredState | None,
    event: str,
) -> None:
    if steps:
        record = context.memory.audit if event == "stage" else context.memory.note
        record(event, steps)
        context.network.apply(steps, desired.plan_name if desired else "")


def _apply_apart(
    context: Context,
    desired: DesiredState | None,
    ledger: Ledger,
    event: str,
    why: Exception,
    leave: Collection[str] = (),
) -> None:
    """Takes what is left of the steps NIC by NIC, after `why` ended them in their midst: what one
    NIC cannot have must not keep it from the others. Raises EffectError, `why` first.

    A switch that gives no answer twice is asked for no further NIC: each would hold the change lock
    until that has taken its whole time."""
    first, failures = text_of(why), list[str]()
    unanswered = int(isinstance(why, NoAnswerError))
    for steps in by_nic(_drift(context, desired, ledger, leave)[0].steps):
        if unanswered > 1 and any(needs_switch(step) for step in steps):
            continue
        try:
            _apply(context, steps, desired, event)
        except Exception as error:
            failures.append(text_of(error))
            unanswered += isinstance(error, NoAnswerError)
    # An error that happened once may be over: then reading back is the judge.
    if failures:
        raise EffectError("; ".join(dict.fromkeys([first, *failures]))) from why


def _read_back(
    context: Context, desired: DesiredState | None, ledger: Ledger, leave: Collection[str]
) -> tuple[Drift, ObservedState]:
    """Returns the drift that is left after a wait, and the network as it was read last:
    ovs-vswitchd answers before it programs the kernel."""
    deadline = time.monotonic() + context.read_back_seconds
    while True:
        left, observed = _drift(context, desired, ledger, leave)
        if not (left.steps or left.faults) or time.monotonic() > deadline:
            return left, observed
        time.sleep(READ_BACK_PAUSE_SECONDS)


def _drift(
    context: Context, desired: DesiredState | None, ledger: Ledger, leave: Collection[str]
) -> tuple[Drift, ObservedState]:
    began = context.elapsed()
    observed = context.observe(desired, ledger)
    context.read_seconds = context.elapsed() - began
    return find_drift(desired, observed, ledger).without(leave), observed


def _text_of(left: Drift) -> str:
    due = left.due_sentences()
    wrong = ["read back and not as wanted: " + "; ".join(due)] if due else []
    return "; ".join([*(refusal.sentence for refusal in left.in_the_way), *wrong])
