"""Pays debts: gives NICs that were away at an undo what they held before, once they are back."""

from __future__ import annotations

import logging

from placewire.agent.contract.state import Refusal
from placewire.agent.keep.context import Context
from placewire.agent.keep.outcome import NotAsAppliedError, Outcome, changes_of, text_of
from placewire.agent.keep.retry import Retry
from placewire.agent.reconcile.ledger import (
    payable,
    payment,
    waiting_sentences,
    without_debts,
)
from placewire.agent.reconcile.next_look import NextLook
from placewire.agent.reconcile.not_as_before import second_address_sentences
from placewire.agent.reconcile.steps import Step

log = logging.getLogger(__name__)


class Paying:
    """Any thread may call `notice` and `seconds_until_look`; `pay` is for whoever holds the change
    lock."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._retry = Retry(context.elapsed)
        self._told: tuple[str, ...] = ()
        # An agent that starts looks at once.
        self._next_look = NextLook(looked_at=float("-inf"))

    def notice(self) -> None:
        """A NIC may be back."""
        self._next_look = self._next_look.noticed(self._context.elapsed())

    def seconds_until_look(self) -> float | None:
        """None: nothing is owed, or a change is under way and comes first."""
        kept = self._context.memory.kept
        if not kept.ledger.owed or kept.lease.is_unsettled:
            return None
        return max(0.0, self._next_look.due_at - self._context.elapsed())

    def pay(self) -> Outcome | None:
        """Pays what can be paid now; None: nothing can."""
        context, memory = self._context, self._context.memory
        began = context.elapsed()
        again_in: float | None = None
        outcome: Outcome | None = None
        self._retry.begin()
        try:
            steps = self._pay()
            if steps is not None:
                outcome = Outcome(changes_of(steps))
            self._retry.succeeded()
        except Exception as error:
            self._retry.failed(error)
            again_in = self._retry.seconds_until_next()
            what = f"what is owed cannot be given back: {text_of(error)}"
            outcome = Outcome(refusals=(self._refusal(what),))
            memory.note("failed", (), detail=what)
        finally:
            ended = context.elapsed()
            self._next_look = self._next_look.looked(
                began, ended, read_seconds=ended - began, found=outcome is not None,
                again_in=again_in,
            )  # fmt: skip
        return outcome

    def _pay(self) -> tuple[Step, ...] | None:
        """The steps taken; None where no debt is payable. Raises EffectError and
        NotAsAppliedError."""
        context, memory = self._context, self._context.memory
        kept = memory.kept
        observed = context.observe(kept.desired, kept.ledger)
        debts = payable(kept.desired, observed, kept.ledger)
        self._tell(waiting_sentences(kept.desired, observed, kept.ledger))
        if not debts:
            return None
        steps = payment(debts, observed)
        if steps:
            memory.note("pay", steps)
            context.network.apply(steps, "")
            observed = context.observe(kept.desired, kept.ledger)
        if payable(kept.desired, observed, kept.ledger) != debts:
            raise NotAsAppliedError("a NIC went away again meanwhile")
        if left := payment(debts, observed):
            due = "; ".join(step.as_change().due_sentence for step in left)
            raise NotAsAppliedError(f"read back and not as wanted: {due}")
        with memory.lock:
            ledger = without_debts(memory.kept.ledger, debts)
            # Not a second time on a full disk: from now on all that is its owner's.
            memory.hold(memory.kept.model_copy(update={"ledger": ledger}))
        nics = ", ".join(debt.nic for debt in debts)
        second = second_address_sentences(debts, observed)
        detail = "; ".join([f"what was owed to {nics} was given back", *second])
        memory.note("paid", (), detail=detail)
        log.warning("%s came back: %s", nics, detail)
        return steps

    def _tell(self, waiting: tuple[str, ...]) -> None:
        """Logs what keeps debts from being paid, once while that stays the same."""
        for sentence in waiting:
            if sentence not in self._told:
                log.warning("%s", sentence)
        self._told = waiting

    def _refusal(self, what: str) -> Refusal:
        return self._context.failure(what)
