"""Stages a new state: checks it, writes it to disk, applies it, and undoes it where that fails."""

from __future__ import annotations

from placewire.agent.contract.command import AGENT
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal, refuse
from placewire.agent.keep.applying import apply_whole, observe_opened
from placewire.agent.keep.context import Context
from placewire.agent.keep.outcome import Outcome, changes_of, text_of
from placewire.agent.keep.restoring import bring_back
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.hold_back import hold_back
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.agent.reconcile.ledger import extended, is_of, with_replaced_owed
from placewire.agent.reconcile.unknown_marks import refusal_of_unknown_marks
from placewire.agent.reconcile.validate import refusals


def stage(context: Context, desired: DesiredState, lease_seconds: float) -> Outcome:
    memory = context.memory
    try:
        with memory.lock:
            now = memory.now()  # First, because it may move expiries along.
            kind = leases.check_stage(memory.kept, desired, now)
        observed = observe_opened(context, desired, memory.kept.ledger)
    except LeaseRefusedError as error:
        return Outcome(refusals=(error.refusal,))
    except EffectError as error:
        return _refused(context, error, "repair that, then stage again")
    if found := find_refusals(context, desired, observed, memory.kept.ledger):
        return Outcome(refusals=found)
    try:
        with memory.lock:
            kept, ledger = memory.kept, extended(desired, observed, memory.kept.ledger)
            if kind == "new":
                memory.save(leases.begin_stage(kept, desired, ledger))
            elif ledger != kept.ledger:  # A NIC that its owner had back meanwhile is taken again.
                memory.save(kept.model_copy(update={"ledger": ledger}))
    except EffectError as error:
        return _refused(context, error, "make room, then stage again")
    context.retry.begin()
    try:
        done = apply_whole(context, desired, memory.kept.ledger, "stage", observed)
        with memory.lock:
            # A state that is staged again may have been committed since the check above.
            now = memory.now()
            expires = now + lease_seconds
            memory.save(leases.staged(memory.kept, expires, done.observed, now, done.told))
    except Exception as error:
        # Any error at all: it must not leave the server half changed.
        return _give_up(context, error)
    return Outcome(changes_of(done.steps), read_back=True)


def find_refusals(
    context: Context, desired: DesiredState, observed: ObservedState, ledger: Ledger
) -> tuple[Refusal, ...]:
    """Why this state cannot be staged on this server as it is now."""
    server = context.facts.server
    ledger = with_replaced_owed(observed, ledger)
    return (
        refusal_of_unknown_marks(server, context.memory.kept.lease, observed)
        or _unpaid(server, desired, observed, ledger)
        or refusals(desired, observed, ledger, context.facts, context.way())
        or hold_back(difference(desired, observed, ledger), observed, ledger)[1]
    )


def _unpaid(
    server: str, desired: DesiredState, observed: ObservedState, ledger: Ledger
) -> tuple[Refusal, ...]:
    """NICs that came back, and have not yet all that they held before. A port of ours is paid when
    it is given back."""
    wanted = {bridge.nic for bridge in desired.bridges} - {b.nic for b in observed.bridges}
    here = [nic for nic in observed.nics if nic.name in wanted]
    return tuple(
        refuse(
            f"server {server}, NIC {debt.nic}",
            "came back, and does not yet have what it held before Placewire took it over",
            f"ask again in a minute; `{AGENT} status` says what is owed",
        )
        for debt in ledger.owed
        if any(is_of(debt, nic) for nic in here)
    )


def _refused(context: Context, error: EffectError, remedy: str) -> Outcome:
    return Outcome(refusals=(context.failure(str(error), remedy),))


def _give_up(context: Context, error: Exception) -> Outcome:
    """A committed state that was staged again (a message may come twice) stays in force, and is
    made whole later; any other state makes way for its baseline."""
    memory, what = context.memory, text_of(error)
    with memory.lock:
        if memory.kept.lease.is_committed:
            context.in_force_is_applied = False
            context.retry.failed(error)
            return Outcome(refusals=(context.failure(what),))
        now = memory.now()  # First, because it may move expiries along.
        memory.hold(leases.begin_restore(memory.kept, now, what))
    outcome = bring_back(context)
    failure = context.failure(what, "the server is on its baseline again")
    return outcome._replace(refusals=(failure, *outcome.refusals))
