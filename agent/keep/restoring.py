"""Brings the baseline back, or makes the state in force whole; takes nothing away from others."""

from __future__ import annotations

from placewire.agent.contract.state import DesiredState, Refusal
from placewire.agent.keep.applying import apply_whole
from placewire.agent.keep.context import Context
from placewire.agent.keep.outcome import NOTHING_DONE, Outcome, changes_of, text_of
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.drift import find_drift
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import Kept


def restore(context: Context, generation: int) -> Outcome:
    """Raises LeaseRefusedError and EffectError, as Keeper.restore does."""
    memory = context.memory
    with memory.lock:
        if not leases.check_restore(memory.kept, generation):
            memory.save(leases.never_to_come(memory.kept, generation))
            return NOTHING_DONE
        aim = leases.begin_restore(memory.kept, memory.now(), "restore")
    return _restore_to(context, aim)


def destroy(context: Context) -> Outcome:
    return _restore_to(context, leases.begin_destroy(context.memory.kept))


def restore_where_due(context: Context) -> Outcome | None:
    """Brings the baseline back where the lease says that it must come back, though another program
    may keep part of it. None: it need not. To be called with the change lock held, so that a change
    that seems to be under way is one that was interrupted."""
    memory = context.memory
    with memory.lock:
        now = memory.now()
        why = leases.must_restore(memory.kept, now)
        if why is None:
            return None
        memory.hold(leases.begin_restore(memory.kept, now, why))
    return bring_back(context)


def bring_back(context: Context) -> Outcome:
    """Carries out what leases.begin_restore or begin_destroy wrote down."""
    memory = context.memory
    kept = memory.kept
    context.retry.begin()
    try:
        steps = apply_whole(context, kept.desired, kept.ledger, "restore")
    except Exception as error:
        # Any error at all: the lease must say that the baseline is not back.
        context.retry.failed(error)
        return _failed(context, kept, text_of(error))
    with memory.lock:
        memory.hold(leases.restored(memory.kept))
    return Outcome(changes_of(steps), read_back=True)


def make_whole(context: Context, desired: DesiredState) -> Outcome:
    """Makes the state in force whole after the agent's start: a reboot keeps bridges in the
    database, but loses addresses, routes and filters."""
    context.retry.begin()
    try:
        steps = apply_whole(context, desired, context.memory.kept.ledger, "resume")
    except Exception as error:
        context.retry.failed(error)
        return Outcome(refusals=(context.failure(text_of(error)),))
    return Outcome(changes_of(steps), read_back=True)


def _restore_to(context: Context, aim: Kept) -> Outcome:
    if found := _in_the_way(context, aim):
        return Outcome(refusals=found)
    with context.memory.lock:
        context.memory.hold(aim)
    return bring_back(context)


def _in_the_way(context: Context, aim: Kept) -> tuple[Refusal, ...]:
    """Why other programs' settings keep `aim` from being reached. Where the server cannot be read
    now, none is known: the change is begun, fails, and is tried again."""
    try:
        observed = context.observe(aim.desired, aim.ledger)
    except EffectError:
        return ()
    return find_drift(aim.desired, observed, aim.ledger).in_the_way


def _failed(context: Context, kept: Kept, what: str) -> Outcome:
    with context.memory.lock:
        context.memory.hold(leases.failed(context.memory.kept, what))
    if what != kept.lease.detail:
        context.memory.note("failed", (), detail=what)
    return Outcome(refusals=(context.failure(what),))
