"""Looks for drift (other programs' changes to the state in force), and heals or reports it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from placewire.agent.contract.entries import Bridge
from placewire.agent.contract.state import DesiredState, DriftState, ObservedState, Refusal
from placewire.agent.keep.applying import apply_all_but
from placewire.agent.keep.context import Context, Taken
from placewire.agent.keep.outcome import (
    KEEPS_TRYING,
    NOTHING_DONE,
    PUT_IT_RIGHT,
    Outcome,
    changes_of,
    text_of,
)
from placewire.agent.keep.retry import Retry
from placewire.agent.reconcile.contest import Contests
from placewire.agent.reconcile.drift import (
    NO_DRIFT,
    Drift,
    find_drift,
    subject_of,
    switch_is_away,
)
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import RETRY_SECONDS
from placewire.agent.reconcile.next_look import NextLook
from placewire.agent.reconcile.steps import EntryStep

log = logging.getLogger(__name__)

# A NIC that was seen unopened is opened anew where it still is so much later: an ovs-vswitchd that
# starts opens its NICs by itself.
OPENS_BY_ITSELF_SECONDS = 3.0
SWITCH_IS_AWAY = "Open vSwitch does not run: what it has lost is put back once it runs again"
FOUGHT_OVER = "changed again and again by somebody else"
_LEFT_SO = "left so, as the plan says (drift: report): {}"


class Healing:
    """Any thread may call `notice` and `seconds_until_look`; the rest is for whoever holds the
    change lock. clock: seconds since 1970, for what people are told."""

    def __init__(self, context: Context, clock: Callable[[], float]) -> None:
        self._context, self._clock = context, clock
        self._memory, self._elapsed = context.memory, context.elapsed
        self._lock = threading.Lock()  # Guards _next_look and _contests.
        self._next_look = NextLook(looked_at=context.elapsed())
        self._contests = Contests()
        self._retry = Retry(context.elapsed)
        # The sentences of the drift that was seen last, and of the drift that could not be healed,
        # with why.
        self._seen: tuple[str, ...] = ()
        self._failed: tuple[str, ...] = ()
        self._failure = ""
        # By subject of a NIC that ovs-vswitchd does not have open: when that was first seen.
        self._unopened_since: dict[str, float] = {}
        self.state = DriftState(policy="heal")

    def notice(self, *, switch_restarted: bool = False) -> None:
        """Something may have changed. switch_restarted: forgets who fought over which object."""
        with self._lock:
            self._next_look = self._next_look.noticed(self._elapsed())
            if switch_restarted:
                self._contests = Contests()

    def begin_anew(self) -> None:
        """The state in force has just been read back and found as it should be."""
        with self._lock:
            self._next_look = self._next_look.rested(self._elapsed(), self._context.read_seconds)
            self._contests = Contests()
        self._all_right()

    def seconds_until_look(self) -> float:
        with self._lock:
            return max(0.0, self._next_look.due_at - self._elapsed())

    def look(self, desired: DesiredState) -> Outcome:
        """Reads the network, and heals what others changed as far as is allowed now."""
        began = read = self._elapsed()
        outcome = NOTHING_DONE
        again_in: float | None = RETRY_SECONDS
        try:
            observed = self._context.observe(desired, self._memory.kept.ledger)
            read = self._elapsed()
            # A NIC that was away may hold what the ledger does not have.
            taken = self._context.take(desired, observed)
            drift = find_drift(taken.state, observed, taken.ledger)
            away = switch_is_away(desired, observed)
            outcome, again_in = self._act(taken, drift, self._came(taken, observed), away=away)
        except EffectError as error:
            outcome = self._not_right((f"cannot be looked at: {error}",))
        finally:
            with self._lock:
                self._next_look = self._next_look.looked(
                    began,
                    self._elapsed(),
                    read_seconds=read - began,
                    found=outcome != NOTHING_DONE,
                    again_in=again_in,
                )
        return outcome

    def _came(self, taken: Taken, observed: ObservedState) -> tuple[Bridge, ...]:
        """The bridges of the NICs that were awaited and can be had now."""
        there = self._context.awaited & {nic.name for nic in observed.nics}
        bridges = taken.state.bridges if taken.state is not None else ()
        return tuple(bridge for bridge in bridges if bridge.nic in there)

    def _act(
        self, taken: Taken, drift: Drift, came: tuple[Bridge, ...], *, away: bool
    ) -> tuple[Outcome, float | None]:
        """The outcome, and in how many seconds to look again (None: when something happens)."""
        drift = drift._replace(in_the_way=(*taken.refused, *drift.in_the_way))
        opening = self._opening(drift)
        theirs = drift.subjects_on(came)
        if not theirs:
            self._await_no_more(came)
        if not drift:
            self._all_right()
            return NOTHING_DONE, None
        news, said = self._see(drift.without(theirs)), "; ".join(drift.sentences())
        assert taken.state is not None
        reported = drift.subjects - theirs if taken.state.drift == "report" else frozenset()
        if taken.state.drift == "report" and not theirs:
            if news:
                self._memory.note("drift", drift.steps, said)
            return self._not_right((_LEFT_SO.format(said),), PUT_IT_RIGHT), None
        if away:
            return self._not_right((SWITCH_IS_AWAY,)), RETRY_SECONDS
        contested = self._contests.left_alone(drift.subjects - reported, self._elapsed())
        opening = {s: seconds for s, seconds in opening.items() if s not in reported}
        paused = {**opening, **contested}
        leave = reported | paused.keys()
        todo, rest = drift.without(leave), drift.without(drift.subjects - reported)
        left = (
            *(self._fought_over(subject) for subject in sorted(contested)),
            *(
                f"{step.due_sentence}; it may still open it by itself"
                for step in drift.steps
                if isinstance(step, EntryStep) and step.unopened and subject_of(step) in opening
            ),
            *([_LEFT_SO.format("; ".join(rest.due_sentences()))] if reported else []),
        )
        if news and (reported or not todo.subjects):
            self._memory.note("drift", rest.steps if reported else drift.steps, said)
        if todo.subjects:
            outcome, again_in = self._heal(taken, drift, leave, left, theirs)
            if not (self._failed or theirs & paused.keys()):
                self._await_no_more(came)
        else:
            outcome, again_in = self._not_right((*_sentences(todo.in_the_way), *left)), None
        return outcome, _soonest(again_in, *paused.values())

    def _await_no_more(self, came: tuple[Bridge, ...]) -> None:
        self._context.awaited -= {bridge.nic for bridge in came}

    def _heal(
        self,
        taken: Taken,
        drift: Drift,
        leave: frozenset[str],
        notes: tuple[str, ...],
        theirs: frozenset[str],
    ) -> tuple[Outcome, float | None]:
        """Heals all but the subjects in `leave`; notes: why those are left. theirs: the subjects of
        NICs that were awaited."""
        todo = drift.without(leave)
        pause = self._retry.seconds_until_next()
        if todo.due_sentences() == self._failed and pause > 0:
            return self._not_right((self._failure, *notes)), pause
        self._retry.begin()
        try:
            steps, in_the_way = apply_all_but(self._context, taken, leave)
        except Exception as error:
            self._retry.failed(error)
            what, left = text_of(error), self._still_due(taken, todo, leave)
            self._failed = left.due_sentences()
            self._count_heal(todo, left, theirs)
            if what != self._failure:
                self._memory.note("failed", (), detail=what)
            self._failure = what
            return self._not_right((what, *notes)), self._retry.seconds_until_next()
        self._retry.succeeded()
        since_unix = self.state.since_unix
        self._all_right()
        self._count_heal(todo, NO_DRIFT, theirs)
        if notes := (*_sentences(in_the_way), *notes):
            self._seen = drift.beyond(todo).sentences()
            # What is left stands since then, and the next look takes it for nothing new.
            self.state = self.state.model_copy(update={"since_unix": since_unix})
            return self._not_right(notes)._replace(changes=changes_of(steps)), None
        return Outcome(changes_of(steps)), None

    def _still_due(self, taken: Taken, todo: Drift, leave: frozenset[str]) -> Drift:
        """Returns the part of `todo` that is due after some failed; all where none can be read."""
        try:
            observed = self._context.observe(taken.state, taken.ledger)
        except EffectError:
            return todo
        return find_drift(taken.state, observed, taken.ledger).without(leave)

    def _count_heal(self, todo: Drift, left: Drift, theirs: frozenset[str]) -> None:
        """Counts what of `todo` was put back, also where the rest failed: whoever changes it again
        and again is left alone all the same. What NICs lacked that were awaited (`theirs`) is told
        as what it is: nobody changed it."""
        if not (healed := todo.subjects - left.subjects):
            return
        with self._lock:
            self._contests = self._contests.healed(healed, self._elapsed())
        still = left.due_sentences()
        if healed & theirs:
            of_theirs = todo.without(todo.subjects - theirs).due_sentences()
            said = "; ".join(s for s in of_theirs if s not in still)
            log.info("a NIC came that was awaited; restored: %s", said)
        if healed - theirs:
            changes = {"heals": self.state.heals + 1, "last_heal_unix": self._clock()}
            self.state = self.state.model_copy(update=changes)
            said = "; ".join(s for s in todo.without(theirs).due_sentences() if s not in still)
            log.warning("others changed the state in force; put back: %s", said)

    def _opening(self, drift: Drift) -> dict[str, float]:
        """By subject of a NIC that ovs-vswitchd may still open by itself: in how many seconds it is
        to be opened anew."""
        now, since = self._elapsed(), self._unopened_since
        self._unopened_since = {s: since.get(s, now) for s in drift.opening}
        left = {s: at + OPENS_BY_ITSELF_SECONDS - now for s, at in self._unopened_since.items()}
        return {subject: seconds for subject, seconds in left.items() if seconds > 0}

    def _fought_over(self, subject: str) -> str:
        if self._contests.is_given_up(subject):
            return f"{subject}: {FOUGHT_OVER}, and left so for an hour since it was last put back"
        return f"{subject}: {FOUGHT_OVER}, and put back after a pause"

    def _see(self, drift: Drift) -> bool:
        """Whether this drift has what the one seen last had not; a new one is counted."""
        sentences, since_unix = drift.sentences(), self.state.since_unix
        news = not set(sentences) <= set(self._seen)
        self._seen = sentences
        if news or since_unix is None:  # None: a NIC that was awaited lacks something.
            since_unix = self._clock()
        changes = {"drifts": self.state.drifts + int(news), "since_unix": since_unix}
        self.state = self.state.model_copy(update=changes)
        return news

    def _not_right(self, notes: tuple[str, ...], remedy: str = KEEPS_TRYING) -> Outcome:
        self.state = self.state.model_copy(update={"notes": notes})
        return Outcome(refusals=tuple(self._context.failure(note, remedy) for note in notes))

    def _all_right(self) -> None:
        self._seen = self._failed = ()
        self._failure = ""
        self.state = self.state.model_copy(update={"since_unix": None, "notes": ()})


def _sentences(refusals: Iterable[Refusal]) -> tuple[str, ...]:
    return tuple(refusal.sentence for refusal in refusals)


def _soonest(*seconds: float | None) -> float | None:
    return min((s for s in seconds if s is not None), default=None)
