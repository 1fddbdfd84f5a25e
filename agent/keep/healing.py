"""Watches what is in force: looks when something may have changed, and heals or reports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from placewire.agent.contract.state import DesiredState, DriftState, Ledger
from placewire.agent.keep.attempts import Attempts
from placewire.agent.keep.making import Maker
from placewire.agent.keep.reports import (
    KEEPS_TRYING,
    NOTHING_DONE,
    Outcome,
    Reports,
    changes_of,
    told,
)
from placewire.agent.reconcile.contest import Contests
from placewire.agent.reconcile.drift import Drift, find_drift, switch_is_away, told_in_the_way
from placewire.agent.reconcile.effects import EffectError, Network
from placewire.agent.reconcile.lease import RETRY_SECONDS
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.reconcile.watch import Schedule
from placewire.agent.store import Memory

log = logging.getLogger(__name__)

SWITCH_IS_AWAY = "Open vSwitch does not run: what went with it comes back after it"
FOUGHT_OVER = "changed again and again by somebody else"
PUT_IT_RIGHT = "put it right, or apply the plan again"


class Healing:
    """`notice` may be called by any thread; the rest by whoever holds the keeper's change lock."""

    def __init__(
        self,
        network: Network,
        memory: Memory,
        maker: Maker,
        reports: Reports,
        elapsed: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._network, self._memory, self._maker = network, memory, maker
        self._reports, self._elapsed, self._clock = reports, elapsed, clock
        self._lock = threading.Lock()  # of the schedule and the contests
        self._schedule = Schedule(looked_at=elapsed())
        self._contests = Contests()
        self._attempts = Attempts(elapsed)
        # As it was seen last, and the same where putting it right failed.
        self._seen: tuple[str, ...] = ()
        self._failed: tuple[str, ...] = ()
        self.state = DriftState(policy="heal")

    def notice(self, *, switch_restarted: bool = False) -> None:
        """Something may have changed. What a restart of the switch loses, nobody fights over."""
        with self._lock:
            self._schedule = self._schedule.noticed(self._elapsed())
            if switch_restarted:
                self._contests = Contests()

    def begin_anew(self) -> None:
        """What is in force was read back, and found as wanted, just now."""
        with self._lock:
            read_seconds = self._maker.read_seconds
            self._schedule = self._schedule.rested(self._elapsed(), read_seconds)
            self._contests = Contests()
        self._all_right()

    def seconds_until_look(self) -> float:
        with self._lock:
            return max(0.0, self._schedule.due_at - self._elapsed())

    def look(self, desired: DesiredState, ledger: Ledger) -> Outcome:
        """What was put right, and what is not right and why."""
        began = read = self._elapsed()
        outcome = NOTHING_DONE
        again_in: float | None = RETRY_SECONDS
        try:
            observed = self._network.observe(unmarked(desired, ledger))
            read = self._elapsed()
            drift = find_drift(desired, observed, ledger)
            away = switch_is_away(desired, observed)
            outcome, again_in = self._act(desired, ledger, drift, away=away)
        except EffectError as error:
            outcome = self._not_right((f"cannot be looked at: {error}",))
        finally:
            with self._lock:
                self._schedule = self._schedule.looked(
                    began,
                    self._elapsed(),
                    read_seconds=read - began,
                    found=outcome != NOTHING_DONE,
                    again_in=again_in,
                )
        return outcome

    def _act(
        self, desired: DesiredState, ledger: Ledger, drift: Drift, *, away: bool
    ) -> tuple[Outcome, float | None]:
        """With in how many seconds to look again; None: when something happens."""
        if not drift:
            self._all_right()
            return NOTHING_DONE, None
        news = self._see(drift)
        if desired.drift == "report":
            if news:
                self._memory.note("drift", drift.steps, "; ".join(drift.sentences()))
            said = f"left so, as the plan says (drift: report): {'; '.join(drift.sentences())}"
            return self._not_right((said,), PUT_IT_RIGHT), None
        if away:
            return self._not_right((SWITCH_IS_AWAY,)), RETRY_SECONDS
        paused = self._contests.left_alone(drift.subjects, self._elapsed())
        todo = drift.without(paused)
        fought = tuple(self._fought_over(subject) for subject in sorted(paused))
        if todo.subjects:
            outcome, again_in = self._heal(desired, ledger, drift, frozenset(paused), fought)
        else:
            if news:
                self._memory.note("drift", drift.steps, "; ".join(drift.sentences()))
            outcome = self._not_right((*told_in_the_way(todo.in_the_way), *fought))
            again_in = None
        return outcome, _soonest(again_in, *paused.values())

    def _heal(
        self,
        desired: DesiredState,
        ledger: Ledger,
        drift: Drift,
        leave: frozenset[str],
        notes: tuple[str, ...],
    ) -> tuple[Outcome, float | None]:
        """All but those subjects. notes: why these are left."""
        todo = drift.without(leave)
        pause = self._attempts.seconds_until_next()
        if todo.due_sentences() == self._failed and pause > 0:
            return self._not_right(self.state.notes), pause
        self._attempts.begin()
        try:
            steps, in_the_way = self._maker.heal(desired, ledger, leave)
        except Exception as error:
            self._attempts.failed(error)
            return self._could_not(todo, told(error)), self._attempts.seconds_until_next()
        self._healed(todo)
        if notes := (*told_in_the_way(in_the_way), *notes):
            self._seen = drift.beyond(todo).sentences()
            return (changes_of(steps), self._not_right(notes)[1]), None
        return (changes_of(steps), ()), None

    def _healed(self, todo: Drift) -> None:
        with self._lock:
            self._contests = self._contests.healed(todo.subjects, self._elapsed())
        self._attempts.succeeded()
        self._all_right()
        changes = {"heals": self.state.heals + 1, "last_heal_unix": self._clock()}
        self.state = self.state.model_copy(update=changes)
        log.warning(
            "others changed what is in force, put back: %s", "; ".join(todo.due_sentences())
        )

    def _could_not(self, todo: Drift, what: str) -> Outcome:
        self._failed = todo.due_sentences()
        if (what,) != self.state.notes:
            self._memory.note("failed", (), detail=what)
        return self._not_right((what,))

    def _fought_over(self, subject: str) -> str:
        if self._contests.is_given_up(subject):
            return f"{subject}: {FOUGHT_OVER}, and left so for an hour since it was last put back"
        return f"{subject}: {FOUGHT_OVER}, and put back after a pause"

    def _see(self, drift: Drift) -> bool:
        """Whether it is news."""
        news = drift.sentences() != self._seen
        if news:
            self._seen = drift.sentences()
            changes = {"drifts": self.state.drifts + 1, "since_unix": self._clock()}
            self.state = self.state.model_copy(update=changes)
        return news

    def _not_right(self, notes: tuple[str, ...], remedy: str = KEEPS_TRYING) -> Outcome:
        self.state = self.state.model_copy(update={"notes": notes})
        return (), tuple(self._reports.failure(note, remedy) for note in notes)

    def _all_right(self) -> None:
        self._seen = self._failed = ()
        self.state = self.state.model_copy(update={"since_unix": None, "notes": ()})


def _soonest(*seconds: float | None) -> float | None:
    return min((s for s in seconds if s is not None), default=None)
