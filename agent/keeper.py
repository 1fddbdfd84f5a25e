"""Keeps one server on one whole state: stages, verifies, commits, restores; under one lease.

Disk first: what is about to be done, and what was there before, is durable before anything is
touched. Effects (network, store, clock) are passed in. Network changes are serialised by a lock;
renewing and committing only touch the lease, and work while a change is under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from placewire.agent.contract.messages import Observation, Previewed, Verified
from placewire.agent.contract.state import ApplyReport, DesiredState, DriftState, LeaseState
from placewire.agent.keep import reading
from placewire.agent.keep.attempts import Attempts
from placewire.agent.keep.healing import Healing
from placewire.agent.keep.making import VERIFY_SECONDS, Maker, NotVerifiedError
from placewire.agent.keep.reports import (
    KEEPS_TRYING,
    NOTHING_DONE,
    Outcome,
    Reports,
    changes_of,
    told,
)
from placewire.agent.keep.restoring import Restoring
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.diff import difference, extend_ledger
from placewire.agent.reconcile.effects import EffectError, Network, Store
from placewire.agent.reconcile.foreign import hold_back
from placewire.agent.reconcile.lease import Kept, LeaseRefusedError
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.reconcile.validate import ServerFacts, refusals
from placewire.agent.store import Memory, elapsed_seconds

IN_FORCE = ("staged", "committed")


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
        self._memory = Memory(store, clock, elapsed)
        self._changing = threading.Lock()
        self._attempts = Attempts(elapsed)
        self._maker = Maker(network, self._memory, verify_seconds)
        self._reports = Reports(facts)
        self._restoring = Restoring(
            network, self._memory, self._attempts, self._maker, self._reports
        )
        self._healing = Healing(network, self._memory, self._maker, self._reports, elapsed, clock)

    @property
    def lease(self) -> LeaseState:
        return self._memory.kept.lease

    @property
    def desired(self) -> DesiredState | None:
        return self._memory.kept.desired

    @property
    def drift(self) -> DriftState:
        """What was seen of changes by others; of the policy that is in force."""
        desired = self.desired
        policy = "heal" if desired is None else desired.drift
        return self._healing.state.model_copy(update={"policy": policy})

    def seconds_until_due(self) -> float | None:
        """When `tick` has something to do; None: nothing will happen by itself."""
        with self._memory.lock:
            now = self._memory.now()
            kept = self._memory.kept
        retry = self._attempts.seconds_until_next()
        due = leases.seconds_until_due(kept, now, retry)
        if kept.desired is None or kept.lease.phase not in IN_FORCE:
            return due
        look = self._healing.seconds_until_look() if self._attempts.whole else retry
        return look if due is None else min(due, look)

    def notice(self, *, switch_restarted: bool = False) -> None:
        """Something of the server's network may have changed: `tick` will look at it soon."""
        self._healing.notice(switch_restarted=switch_restarted)

    def save_again(self) -> None:
        """To be called now and then: a disk that was full may have room again."""
        with self._memory.lock:
            self._memory.save_again()

    # -- reading -------------------------------------------------------------------------------

    def observe(self) -> Observation:
        return reading.observe(self._network, self._memory.kept)

    def preview(self, desired: DesiredState) -> Previewed:
        """What `stage` would change, and all that it would refuse, its generation included."""
        return reading.preview(self._network, self._memory.kept, desired, self._facts())

    def verify(self, generation: int) -> Verified:
        """Raises LeaseRefusedError where that generation is not in force."""
        verified = reading.verify(self._network, self._memory.kept, generation)
        return verified.model_copy(update={"drift": self.drift})

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
        returns unverified, the server is on its baseline, or the lease says `failed`; or this very
        state was committed before, and is tried again until it is whole."""
        started = time.monotonic()
        with self._changing:
            outcome = self._stage(desired, lease_seconds)
        report = self._reports.report(desired.generation, outcome, started)
        return report.model_copy(update={"server": desired.server})

    def restore(self, generation: int) -> ApplyReport:
        """Raises LeaseRefusedError where a newer generation is in force; EffectError where that one
        never came and this cannot be saved, so that it could still come. Refused in the report,
        with nothing touched, where it would take something away from others."""
        started = time.monotonic()
        with self._changing:
            with self._memory.lock:
                due = leases.check_restore(self._memory.kept, generation)
                if due:
                    aim = leases.begin_restore(self._memory.kept, self._memory.now(), "restore")
                else:
                    self._memory.save(leases.never_to_come(self._memory.kept, generation))
            outcome = self._restore(aim) if due else NOTHING_DONE
        return self._reports.report(generation, outcome, started)

    def destroy(self, plan_name: str) -> ApplyReport:
        """Refused in the report as `restore` is. Raises LeaseRefusedError over another plan's."""
        leases.check_destroy(self._memory.kept, plan_name)
        started = time.monotonic()
        with self._changing:
            outcome = self._restore(leases.begin_destroy(self._memory.kept))
        return self._reports.report(self.lease.highest_generation, outcome, started)

    def tick(self) -> ApplyReport | None:
        """Brings the baseline back where the lease says so, or tries again to make whole what
        `resume` could not, or looks whether others changed what is in force; None: nothing was due.
        A change under way holds the lock: one that is found here was interrupted."""
        started = time.monotonic()
        with self._changing:
            with self._memory.lock:
                now = self._memory.now()
                why = leases.must_restore(self._memory.kept, now)
                generation = self.lease.generation
                if why is not None:
                    self._memory.hold(leases.begin_restore(self._memory.kept, now, why))
            if why is not None:
                outcome = self._bring_back()
            elif (desired := self._memory.kept.desired) is None:
                return None
            elif not self._attempts.whole:
                outcome = self._make_whole(desired)
            elif self._healing.seconds_until_look() <= 0:
                outcome = self._healing.look(desired, self._memory.kept.ledger)
            else:
                return None
        return self._reports.report(generation, outcome, started)

    def resume(self) -> ApplyReport | None:
        """After a start: finishes undoing; else makes what is in force whole again (a reboot
        keeps bridges in the database, and loses addresses, routes and filters). What could not
        be done now is due again: see `seconds_until_due` and `tick`."""
        self._attempts.whole = False
        return self.tick()

    def _stage(self, desired: DesiredState, lease_seconds: float) -> Outcome:
        try:
            kind = leases.check_stage(self._memory.kept, desired)
            observed = self._network.observe(unmarked(desired, self._memory.kept.ledger))
        except LeaseRefusedError as error:
            return (), (error.refusal,)
        except EffectError as error:
            return (), (self._reports.failure(str(error), "repair that, then stage again"),)
        ledger = self._memory.kept.ledger
        found = (
            refusals(desired, observed, ledger, self._facts())
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
            return (), (self._reports.failure(str(error), "make room, then stage again"),)
        self._attempts.begin()
        try:
            steps = self._maker.make_so(desired, self._memory.kept.ledger, "stage", observed)
            self._now_whole()
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
        return changes_of(steps), ()

    def _give_up(self, what: str) -> Outcome:
        """A decision stands: what was committed before, and was staged again (a message may come
        twice), is made whole later."""
        with self._memory.lock:
            if self._memory.kept.lease.phase == "committed":
                self._attempts.broke()
                return (), (self._reports.failure(what, KEEPS_TRYING),)
            self._memory.hold(leases.begin_restore(self._memory.kept, self._memory.now(), what))
        changes, found = self._bring_back()
        return changes, (self._reports.failure(what, "the server is on its baseline again"), *found)

    def _restore(self, aim: Kept) -> Outcome:
        found = self._restoring.in_the_way(aim)
        if found:
            return (), found
        with self._memory.lock:
            self._memory.hold(aim)
        return self._bring_back()

    def _bring_back(self) -> Outcome:
        outcome = self._restoring.bring_back()
        if not outcome[1]:
            self._now_whole()
        return outcome

    def _make_whole(self, desired: DesiredState) -> Outcome:
        self._attempts.begin()
        try:
            steps = self._maker.make_so(desired, self._memory.kept.ledger, "resume")
        except Exception as error:
            self._attempts.failed(error)
            return (), (self._reports.failure(told(error), KEEPS_TRYING),)
        self._now_whole()
        return changes_of(steps), ()

    def _now_whole(self) -> None:
        self._attempts.succeeded()
        self._healing.begin_anew()
