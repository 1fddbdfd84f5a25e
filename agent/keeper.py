"""Keeps one server on one whole state: stages, verifies, commits, restores; under one lease.

Disk first: what is about to be done, and what was there before, is durable before anything is
touched. Effects (network, store, clock) are passed in. Network changes are serialised by a lock;
renewing and committing only touch the lease, and work while a change is under way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.contract.messages import Observation, Previewed, Verified
from agent.contract.state import (
    ApplyReport,
    Change,
    DesiredState,
    LeaseState,
    Ledger,
    ObservedState,
    Refusal,
)
from agent.reconcile import lease as leases
from agent.reconcile.diff import (
    difference,
    extend_ledger,
    watched_sysctls,
)
from agent.reconcile.effective import ineffective_queues
from agent.reconcile.effects import EffectError, Network, Store, UnreadableError
from agent.reconcile.foreign import hold_back
from agent.reconcile.lease import Kept, LeaseRefusedError
from agent.reconcile.steps import Step
from agent.reconcile.validate import ServerFacts, refusals
from agent.store import Memory, elapsed_seconds

log = logging.getLogger(__name__)

# ovs-vswitchd programs the kernel after it has taken a transaction in.
VERIFY_SECONDS = 6.0
VERIFY_PAUSE_SECONDS = 0.1


class NotVerifiedError(Exception):
    """The read-back does not show what was applied; the message lists what differs."""


class Keeper:
    """Thread-safe. `facts` is asked anew for each check: the way to the controller may change."""

    def __init__(
        self,
        network: Network,
        store: Store,
        facts: Callable[[], ServerFacts],
        clock: Callable[[], float] = time.time,
        verify_seconds: float = VERIFY_SECONDS,
        elapsed: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._network = network
        self._facts = facts
        self._verify_seconds = verify_seconds
        self._elapsed = elapsed
        self._memory = Memory(store, clock, elapsed)
        self._changing = threading.Lock()
        # Of the last attempt at a change, and how many in a row failed.
        self._tried_at = elapsed()
        self._failures = 0
        # False from a start until what is on disk was found, or made, to be in force.
        self._whole = True

    @property
    def lease(self) -> LeaseState:
        return self._memory.kept.lease

    @property
    def desired(self) -> DesiredState | None:
        return self._memory.kept.desired

    def seconds_until_due(self) -> float | None:
        """When `tick` has something to do; None: nothing will happen by itself."""
        with self._memory.lock:
            now = self._memory.now()
            kept = self._memory.kept
        pause = leases.retry_seconds(self._failures)
        retry = max(0.0, self._tried_at + pause - self._elapsed())
        due = leases.seconds_until_due(kept, now, retry)
        if self._whole or kept.desired is None:
            return due
        return retry if due is None else min(due, retry)

    def save_again(self) -> None:
        """To be called now and then: a disk that was full may have room again."""
        with self._memory.lock:
            self._memory.save_again()

    # -- reading -------------------------------------------------------------------------------

    def observe(self) -> Observation:
        kept = self._memory.kept
        state = self._network.observe(watched_sysctls(kept.desired, kept.ledger))
        return Observation(state=state, lease=kept.lease)

    def preview(self, desired: DesiredState) -> Previewed:
        """What `stage` would change, and all that it would refuse, its generation included."""
        kept = self._memory.kept
        try:
            leases.check_stage(kept, desired)
        except LeaseRefusedError as error:
            return Previewed(changes=(), refusals=(error.refusal,), lease=kept.lease)
        observed = self._network.observe(watched_sysctls(desired, kept.ledger))
        found = refusals(desired, observed, self._facts())
        steps: tuple[Step, ...] = ()
        if not found:
            steps = difference(desired, observed, kept.ledger)
            _, found = hold_back(steps, observed, kept.ledger)
        steps = () if found else steps
        return Previewed(changes=_changes(steps), refusals=found, lease=kept.lease)

    def verify(self, generation: int) -> Verified:
        """Raises LeaseRefusedError where that generation is not in force."""
        kept = self._memory.kept
        if kept.lease.generation != generation or kept.desired is None:
            raise LeaseRefusedError(
                Refusal(
                    what=f"generation {generation} is not in force, "
                    f"{kept.lease.generation} is ({kept.lease.phase})",
                    where="verify",
                    remedy="ask for the generation that is in force",
                )
            )
        observed = self._network.observe(watched_sysctls(kept.desired, kept.ledger))
        return Verified(
            deviations=_changes(difference(kept.desired, observed, kept.ledger)),
            problems=(*observed.problems, *ineffective_queues(kept.desired, observed)),
        )

    # -- the lease alone -----------------------------------------------------------------------

    def renew(self, generation: int, lease_seconds: float) -> LeaseState:
        """What cannot be saved is renewed all the same: a restart then only ends it earlier."""
        with self._memory.lock:
            now = self._memory.now()
            self._memory.hold(
                leases.renewed(self._memory.kept, generation, now + lease_seconds, now)
            )
            return self.lease

    def commit(self, generation: int, lease_seconds: float | None) -> LeaseState:
        """Raises EffectError where it cannot be saved: a decision must outlive this process."""
        with self._memory.lock:
            now = self._memory.now()
            expires = None if lease_seconds is None else now + lease_seconds
            self._memory.save(leases.committed(self._memory.kept, generation, expires, now))
            self._memory.note("commit", ())
            return self.lease

    # -- changes -------------------------------------------------------------------------------

    def stage(self, desired: DesiredState, lease_seconds: float) -> ApplyReport:
        """Never raises for what the server or the state refuse: the report says it. When it
        returns unverified, the server is on its baseline, or the lease says `failed`."""
        started = time.monotonic()
        with self._changing:
            changes, found = self._stage(desired, lease_seconds)
        return ApplyReport(
            server=desired.server,
            generation=desired.generation,
            changes=changes,
            verified=not found,
            refusals=found,
            wall_seconds=time.monotonic() - started,
        )

    def restore(self, generation: int) -> ApplyReport:
        """Raises LeaseRefusedError where a newer generation is in force. Refused in the report,
        with nothing touched, where it would take something away from others."""
        started = time.monotonic()
        changes: tuple[Change, ...] = ()
        with self._changing:
            with self._memory.lock:
                due = leases.check_restore(self._memory.kept, generation)
                if due:
                    aim = leases.begin_restore(self._memory.kept, self._memory.now(), "restore")
                else:
                    self._memory.hold(leases.never_to_come(self._memory.kept, generation))
            found = self._in_the_way(aim) if due else ()
            if due and not found:
                with self._memory.lock:
                    self._memory.hold(aim)
                changes, found = self._bring_back()
        return self._restore_report(generation, changes, found, started)

    def destroy(self, plan_name: str) -> ApplyReport:
        """Refused in the report as `restore` is. Raises LeaseRefusedError over another plan's."""
        leases.check_destroy(self._memory.kept, plan_name)
        started = time.monotonic()
        changes: tuple[Change, ...] = ()
        with self._changing:
            found = self._in_the_way(leases.begin_destroy(self._memory.kept))
            if not found:
                with self._memory.lock:
                    self._memory.hold(leases.begin_destroy(self._memory.kept))
                changes, found = self._bring_back()
        return self._restore_report(self.lease.highest_generation, changes, found, started)

    def tick(self) -> ApplyReport | None:
        """Brings the baseline back where the lease says so, or tries again to make whole what
        `resume` could not; None: nothing was due. A change under way holds the lock: one that is
        found here was interrupted."""
        started = time.monotonic()
        with self._changing:
            with self._memory.lock:
                now = self._memory.now()
                why = leases.must_restore(self._memory.kept, now)
                generation = self.lease.generation
                if why is not None:
                    self._memory.hold(leases.begin_restore(self._memory.kept, now, why))
            if why is not None:
                changes, found = self._bring_back()
            elif not self._whole and self._memory.kept.desired is not None:
                changes, found = self._make_whole(self._memory.kept.desired)
            else:
                return None
        return self._restore_report(generation, changes, found, started)

    def resume(self) -> ApplyReport | None:
        """After a start: finishes undoing; else makes what is in force whole again (a reboot
        keeps bridges in the database, and loses addresses, routes and filters). What could not
        be done now is due again: see `seconds_until_due` and `tick`."""
        self._whole = False
        return self.tick()

    def _stage(
        self, desired: DesiredState, lease_seconds: float
    ) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
        try:
            kind = leases.check_stage(self._memory.kept, desired)
            observed = self._network.observe(watched_sysctls(desired, self._memory.kept.ledger))
        except LeaseRefusedError as error:
            return (), (error.refusal,)
        except EffectError as error:
            return (), (self._failure(str(error), "repair that, then stage again"),)
        ledger = self._memory.kept.ledger
        found = (
            refusals(desired, observed, self._facts())
            or hold_back(difference(desired, observed, ledger), observed, ledger)[1]
        )
        if found:
            return (), found
        try:
            with self._memory.lock:
                if kind == "new":
                    ledger = extend_ledger(desired, observed, self._memory.kept.ledger)
                    self._memory.save(leases.begin_stage(self._memory.kept, desired, ledger))
        except EffectError as error:
            return (), (self._failure(str(error), "make room, then stage again"),)
        self._tried_at = self._elapsed()
        try:
            steps = self._make_so(desired, self._memory.kept.ledger, "stage")
            with self._memory.lock:
                # The lease may have been decided meanwhile, where this was staged before.
                self._memory.save(
                    leases.staged(self._memory.kept, self._memory.now() + lease_seconds)
                )
        except (EffectError, NotVerifiedError) as error:
            return self._give_up(str(error))
        except Exception as error:
            # A mistake of ours must not leave a server half changed.
            self._give_up(f"{type(error).__name__}: {error}")
            raise
        return _changes(steps), ()

    def _give_up(self, what: str) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
        with self._memory.lock:
            self._memory.hold(leases.begin_restore(self._memory.kept, self._memory.now(), what))
        changes, found = self._bring_back()
        return changes, (self._failure(what, "the server is on its baseline again"), *found)

    def _in_the_way(self, aim: Kept) -> tuple[Refusal, ...]:
        """What of others would go with a change to `aim`. Where the server cannot be read now,
        nothing is known: the change is begun, fails, and is tried again."""
        try:
            observed = self._network.observe(watched_sysctls(aim.desired, aim.ledger))
        except EffectError:
            return ()
        steps = difference(aim.desired, observed, aim.ledger)
        return hold_back(steps, observed, aim.ledger)[1]

    def _make_whole(self, desired: DesiredState) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
        self._tried_at = self._elapsed()
        try:
            return _changes(self._make_so(desired, self._memory.kept.ledger, "resume")), ()
        except Exception as error:
            self._count(error)
            return (), (self._failure(_told(error), "repair that; the agent keeps trying"),)

    def _bring_back(self) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
        """Makes what `begin_restore` aimed at true. Holds the change lock already."""
        kept = self._memory.kept
        self._tried_at = self._elapsed()
        try:
            steps = self._make_so(kept.desired, kept.ledger, "restore")
            self._network.sweep()
        except Exception as error:
            # Whatever it was: the lease must say that the baseline is not back.
            what = _told(error)
            self._count(error)
            news = what != kept.lease.detail
            with self._memory.lock:
                self._memory.hold(leases.failed(self._memory.kept, what))
            if news:
                self._memory.note("failed", (), detail=what)
            return (), (self._failure(what, "repair that; the agent keeps trying"),)
        with self._memory.lock:
            self._memory.hold(leases.restored(self._memory.kept))
        return _changes(steps), ()

    def _make_so(
        self, desired: DesiredState | None, ledger: Ledger, event: str
    ) -> tuple[Step, ...]:
        """Applies the difference and reads it back. Raises EffectError, NotVerifiedError.

        A stage that cannot be noted in the audit log is not done; undoing is.
        """
        names = watched_sysctls(desired, ledger)
        observed = self._network.observe(names)
        steps, _ = hold_back(difference(desired, observed, ledger), observed, ledger)
        if steps:
            (self._memory.audit if event == "stage" else self._memory.note)(event, steps)
            self._network.apply(steps, desired.plan_name if desired else "")
        deadline = time.monotonic() + self._verify_seconds
        while wrong := _wrong(desired, self._network.observe(names), ledger):
            settled = wrong.in_the_way and not wrong.due
            if settled or time.monotonic() > deadline:
                raise NotVerifiedError(str(wrong))
            time.sleep(VERIFY_PAUSE_SECONDS)
        self._whole, self._failures = True, 0
        return steps

    def _count(self, error: Exception) -> None:
        """What failed without a change being tried may be tried again soon, and costs nothing."""
        if not isinstance(error, UnreadableError):
            self._failures += 1

    def _failure(self, what: str, remedy: str) -> Refusal:
        return Refusal(what=what, where=f"server {self._facts().server}", remedy=remedy)

    def _restore_report(
        self,
        generation: int,
        changes: tuple[Change, ...],
        found: tuple[Refusal, ...],
        started: float,
    ) -> ApplyReport:
        return ApplyReport(
            server=self._facts().server,
            generation=generation,
            changes=changes,
            verified=not found,
            refusals=found,
            wall_seconds=time.monotonic() - started,
        )


def _told(error: Exception) -> str:
    """What a report says of it; a mistake of ours is logged with its traceback beside that."""
    if isinstance(error, (EffectError, NotVerifiedError)):
        return str(error)
    log.error("unexpected", exc_info=error)
    return f"{type(error).__name__}: {error}"


class _Wrong(NamedTuple):
    """What the read-back does not show; falsy where it is all as wanted."""

    due: tuple[str, ...]
    in_the_way: tuple[Refusal, ...]

    def __bool__(self) -> bool:
        return bool(self.due or self.in_the_way)

    def __str__(self) -> str:
        parts = [f"{r.where}: {r.what}; {r.remedy}" for r in self.in_the_way]
        if self.due:
            parts.append("read back and not as wanted: " + "; ".join(self.due))
        return "; ".join(parts)


def _wrong(desired: DesiredState | None, observed: ObservedState, ledger: Ledger) -> _Wrong:
    left, in_the_way = hold_back(difference(desired, observed, ledger), observed, ledger)
    due = (f"{c.action} {c.collection} {c.key} is still due" for c in _changes(left))
    return _Wrong((*due, *ineffective_queues(desired, observed)), in_the_way)


def _changes(steps: Sequence[Step]) -> tuple[Change, ...]:
    return tuple(step.as_change() for step in steps)
