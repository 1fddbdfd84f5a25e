"""Brings the baseline back, or makes the state in force whole; takes nothing away from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placewire.agent.contract.state import DesiredState, Refusal
from placewire.agent.keep.applying import Applied, apply_whole, observe_opened
from placewire.agent.keep.context import Context, Taken
from placewire.agent.keep.outcome import (
    KEEPS_TRYING,
    NOTHING_DONE,
    PUT_IT_RIGHT,
    NotAsAppliedError,
    Outcome,
    changes_of,
    text_of,
)
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.admission import admitted
from placewire.agent.reconcile.drift import find_drift
from placewire.agent.reconcile.effects import EffectError, NotDurableError
from placewire.agent.reconcile.lease import Kept
from placewire.agent.reconcile.ledger import extended, ledger_of_marks, owed_refusals
from placewire.agent.reconcile.protected import protected_names
from placewire.agent.reconcile.steps import Step
from placewire.agent.reconcile.unknown_marks import (
    held_on_bridges,
    refusal_of_unknown_marks,
    refusals_of_marks,
    unknown_marks,
)
from placewire.agent.reconcile.unmarkable import NOTHING_KNOWN


def restore(context: Context, generation: int) -> Outcome:
    """Raises LeaseRefusedError and EffectError, as Keeper.restore does."""
    memory = context.memory
    with memory.lock:
        there_is = leases.check_restore(memory.kept, generation)
        # One that is not here must not come later, also while another one is being undone.
        if not there_is:
            memory.save(leases.never_to_come(memory.kept, generation))
        elif generation > memory.kept.lease.highest_generation:
            # A full disk must not keep the other one from being undone.
            memory.hold(leases.never_to_come(memory.kept, generation))

    def begun() -> Kept:
        now = memory.now()  # First, because it may move expiries along.
        return leases.begin_restore(memory.kept, now, "restore")

    return _restore_to(context, begun) if there_is else _nothing_to_undo(context)


def destroy(context: Context) -> Outcome:
    return _restore_to(context, lambda: leases.begin_destroy(context.memory.kept))


def restore_from_marks(context: Context) -> Outcome:
    """For a server whose state on disk is lost. Obeys all marks or none. Raises EffectError."""
    memory = context.memory
    observed = context.network.observe(NOTHING_KNOWN)
    if not unknown_marks(memory.kept.lease, observed):
        return _with_debts(context, NOTHING_DONE)
    ledger = ledger_of_marks(observed, held_on_bridges(observed))
    protected = protected_names(context.facts.protected, observed.nics)
    if found := refusals_of_marks(observed, ledger, protected):
        return Outcome(refusals=found)
    ledger = ledger.model_copy(update={"owed": memory.kept.ledger.owed})
    with memory.lock:
        memory.save(leases.begin_restore_from_marks(memory.kept, ledger))
    return bring_back(context)


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
    """Carries out what leases.begin_restore or begin_destroy wrote down, as far as NICs that were
    given back meanwhile may be taken again."""
    memory = context.memory
    kept = memory.kept
    context.retry.begin()
    try:
        observed = observe_opened(context, kept.desired, kept.ledger)
        taken = context.take(kept.desired, observed)
        done = apply_whole(context, taken.state, taken.ledger, "restore", observed)
        _save_as_restored(context, taken, done)
    except Exception as error:
        # Any error at all: the lease must say that the baseline is not back.
        context.retry.failed(error)
        return _failed(context, kept, text_of(error))
    return _with_debts(context, Outcome(changes_of(done.steps), read_back=True))


def make_whole(context: Context, desired: DesiredState) -> Outcome:
    """Makes the state in force whole after the agent's start: a reboot keeps bridges in the
    database, but loses addresses, routes and filters. What cannot be had now, as a NIC that is
    away or what others have in its place, is drift from then on: it must not keep other drift from
    being looked for."""
    context.retry.begin()
    try:
        observed = observe_opened(context, desired, context.memory.kept.ledger)
        there = {nic.name for nic in observed.nics}
        context.awaited = frozenset(b.nic for b in desired.bridges if b.nic not in there)
        taken = context.take(desired, observed)
        steps = apply_whole(context, taken.state, taken.ledger, "resume", observed).steps
        _require_all(taken, steps)
    except NotAsAppliedError as error:
        if error.is_due and desired.drift == "report":
            # As from a switch that is slow after a boot: nobody else would try again.
            context.retry.failed(error)
            return Outcome(changes_of(error.steps), (context.failure(str(error)),))
        context.in_force_is_applied = True
        context.retry.succeeded()
        tries = desired.drift == "heal" or context.awaited
        remedy = KEEPS_TRYING if tries else PUT_IT_RIGHT
        return Outcome(changes_of(error.steps), (context.failure(str(error), remedy),))
    except Exception as error:
        context.retry.failed(error)
        return Outcome(refusals=(context.failure(text_of(error)),))
    return Outcome(changes_of(steps), read_back=True)


def _restore_to(context: Context, begun: Callable[[], Kept]) -> Outcome:
    """begun: what is to be remembered; called with the memory's lock held, and once more after the
    server was read: meanwhile the clock may have been set, or the lease renewed."""
    with context.memory.lock:
        aim = begun()
    if found := _in_the_way(context, aim):
        return Outcome(refusals=found)
    with context.memory.lock:
        context.memory.hold(begun())
    return bring_back(context)


def _in_the_way(context: Context, aim: Kept) -> tuple[Refusal, ...]:
    """Why other programs' settings keep `aim` from being reached. Where the server cannot be read
    now, none is known: the change is begun, fails, and is tried again."""
    try:
        observed = observe_opened(context, aim.desired, aim.ledger)
    except EffectError:
        return ()
    unknown = refusal_of_unknown_marks(context.facts.server, context.memory.kept.lease, observed)
    if unknown or aim.desired is None:
        return unknown or find_drift(None, observed, aim.ledger).in_the_way
    state, refused, ledger = admitted(aim.desired, observed, aim.ledger, context.facts, context.way)
    # As the undo itself does it, which writes down what NICs hold before it takes them.
    ledger = extended(state, observed, ledger)
    return (*refused, *find_drift(state, observed, ledger).in_the_way)


def _nothing_to_undo(context: Context) -> Outcome:
    """Nothing of that generation is here; but something may be owed, or bear marks of ours."""
    memory = context.memory
    if not memory.kept.lease.is_idle:
        return NOTHING_DONE
    return _with_debts(context, Outcome(refusals=_in_the_way(context, memory.kept)))


def _with_debts(context: Context, outcome: Outcome) -> Outcome:
    owed = owed_refusals(context.facts.server, context.memory.kept.ledger)
    return outcome._replace(refusals=(*outcome.refusals, *owed))


def _save_as_restored(context: Context, taken: Taken, done: Applied) -> None:
    """Raises NotDurableError: an agent that starts anew, or a switch after a loss of power, would
    bring back what was undone. Raises NotAsAppliedError where part of the aim is left out."""
    memory = context.memory
    if taken.refused and taken.state is not None:
        with memory.lock:
            memory.hold(leases.restored_in_part(memory.kept, taken.state, done.observed))
    _require_all(taken)
    try:
        # First: an agent whose state says that nothing of ours is left removes no bridge of ours
        # that a loss of power brings back.
        context.network.make_durable()
    except EffectError as error:
        raise NotDurableError(
            f"all is undone, but Open vSwitch may not have that on its disk: {error}; a loss of "
            "power now could bring back what was undone"
        ) from error
    try:
        with memory.lock:
            memory.save(leases.restored(memory.kept, done.observed, done.told))
    except EffectError as error:
        raise NotDurableError(
            f"all is undone, but that cannot be written to disk: {error}; an agent that starts "
            "now would bring back what was undone"
        ) from error


def _require_all(taken: Taken, steps: Sequence[Step] = ()) -> None:
    """steps: those that were taken."""
    if taken.refused:
        raise NotAsAppliedError("; ".join(one.sentence for one in taken.refused), steps)


def _failed(context: Context, kept: Kept, what: str) -> Outcome:
    with context.memory.lock:
        context.memory.hold(leases.failed(context.memory.kept, what))
    if what != kept.lease.detail:
        context.memory.note("failed", (), detail=what)
    return Outcome(refusals=(context.failure(what),))
