"""The keeper's operations that change nothing: observe, preview and read back."""

from __future__ import annotations

from placewire.agent.contract.messages import Observation, Previewed, ReadBackResult
from placewire.agent.contract.state import DesiredState
from placewire.agent.keep.applying import observe_opened
from placewire.agent.keep.context import Context
from placewire.agent.keep.outcome import changes_of
from placewire.agent.keep.staging import find_refusals
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.drift import find_drift
from placewire.agent.reconcile.effective import ineffective_queues
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.agent.reconcile.ledger import extended, waiting_sentences
from placewire.agent.reconcile.unknown_marks import refusal_of_unknown_marks


def observe(context: Context) -> Observation:
    """The problems name also marks of ours that no state on this server's disk knows, and what
    keeps debts from being paid."""
    kept = context.memory.kept
    state = context.observe(kept.desired, kept.ledger)
    # A change may have begun meanwhile: its marks are known.
    was_idle = context.memory.kept.lease == kept.lease
    unknown = refusal_of_unknown_marks(context.facts.server, kept.lease, state) if was_idle else ()
    problems = (
        *state.problems,
        *(refusal.sentence for refusal in unknown),
        *waiting_sentences(kept.desired, state, kept.ledger),
    )
    return Observation(
        state=state.model_copy(update={"problems": problems}), lease=context.memory.lease
    )


def preview(context: Context, desired: DesiredState) -> Previewed:
    """What staging `desired` would change, and all that staging would refuse."""
    memory = context.memory
    with memory.lock:
        now, kept = memory.now(), memory.kept
    try:
        leases.check_stage(kept, desired, now)
    except LeaseRefusedError as error:
        return Previewed(changes=(), refusals=(error.refusal,), lease=memory.lease)
    observed = observe_opened(context, desired, kept.ledger)
    if found := find_refusals(context, desired, observed, kept.ledger):
        return Previewed(changes=(), refusals=found, lease=memory.lease)
    # Staging writes down first what NICs hold now, and the marks of bridges tell that.
    ledger = extended(desired, observed, kept.ledger)
    changes = changes_of(find_drift(desired, observed, ledger).steps)
    return Previewed(changes=changes, refusals=(), lease=memory.lease)


def read_back(context: Context, generation: int) -> ReadBackResult:
    """Raises LeaseRefusedError where that generation is not in force."""
    kept = context.memory.kept
    if kept.lease.generation != generation or kept.desired is None:
        raise LeaseRefusedError(
            "read back",
            f"generation {generation} is not in force, {kept.lease.generation} is "
            f"({kept.lease.phase})",
            "ask for the generation that is in force",
        )
    observed = context.observe(kept.desired, kept.ledger)
    return ReadBackResult(
        deviations=changes_of(difference(kept.desired, observed, kept.ledger)),
        problems=(*observed.problems, *ineffective_queues(kept.desired, observed)),
    )
