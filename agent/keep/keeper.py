"""The keeper holds one server to one whole state, under one lease.

Each public method of Keeper is one operation; the larger ones have a file each in this folder. An
operation writes what it is about to do, and what was there before, to disk before it touches
anything: an agent that is killed in the middle undoes the operation after its next start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from placewire.agent.contract.messages import Observation, Previewed, ReadBackResult
from placewire.agent.contract.state import ApplyReport, DesiredState, DriftState, LeaseState
from placewire.agent.keep import reading, restoring, staging
from placewire.agent.keep.context import Context
from placewire.agent.keep.healing import Healing
from placewire.agent.keep.memory import Memory, boot_id, elapsed_seconds
from placewire.agent.keep.outcome import Outcome
from placewire.agent.keep.paying import Paying
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.effects import Network, Store
from placewire.agent.reconcile.ledger import owed_sentences, without_debts
from placewire.agent.reconcile.validate import ServerFacts, WayToController

# ovs-vswitchd programs the kernel only after it has answered a transaction.
READ_BACK_SECONDS = 6.0


class Keeper:
    """Thread-safe. One operation at a time changes the network; `renew` and `commit` touch only the
    lease, and work while a change is under way. Context explains the parameters."""

    def __init__(
        self,
        network: Network,
        store: Store,
        facts: ServerFacts,
        way: Callable[[], WayToController],
        clock: Callable[[], float] = time.time,
        read_back_seconds: float = READ_BACK_SECONDS,
        elapsed: Callable[[], float] = elapsed_seconds,
        boot_id: Callable[[], str] = boot_id,
    ) -> None:
        self._memory = Memory(store, clock, elapsed, boot_id)
        self._context = Context(network, self._memory, facts, way, elapsed, read_back_seconds)
        self._healing = Healing(self._context, clock)
        self._paying = Paying(self._context)
        self._changing = threading.Lock()

    @property
    def lease(self) -> LeaseState:
        return self._memory.lease

    @property
    def desired(self) -> DesiredState | None:
        return self._memory.kept.desired

    @property
    def concerned_nics(self) -> frozenset[str]:
        """The NICs of the state in force, and those to which something is owed."""
        desired, ledger = self.desired, self._memory.kept.ledger
        own = {bridge.nic for bridge in desired.bridges} if desired is not None else set()
        return frozenset(own | {debt.nic for debt in ledger.owed})

    @property
    def drift(self) -> DriftState:
        """The drift that the agent saw, with the drift policy of the state in force."""
        policy = "heal" if self.desired is None else self.desired.drift
        return self._healing.state.model_copy(update={"policy": policy})

    # -- reading -------------------------------------------------------------------------------

    def observe(self) -> Observation:
        return reading.observe(self._context)

    def preview(self, desired: DesiredState) -> Previewed:
        return reading.preview(self._context, desired)

    def read_back(self, generation: int) -> ReadBackResult:
        """Raises LeaseRefusedError where that generation is not in force."""
        return reading.read_back(self._context, generation).model_copy(update={"drift": self.drift})

    # -- the lease alone -----------------------------------------------------------------------

    def renew(self, generation: int, lease_seconds: float) -> LeaseState:
        """A renewal that cannot be saved holds all the same: after a restart the lease only ends
        earlier. Raises LeaseRefusedError."""
        memory = self._memory
        with memory.lock:
            now = memory.now()
            memory.hold(leases.renewed(memory.kept, generation, now + lease_seconds, now))
            return self.lease

    def commit(self, generation: int, lease_seconds: float | None) -> LeaseState:
        """Raises LeaseRefusedError; EffectError where it cannot be saved: a commit must last."""
        memory = self._memory
        with memory.lock:
            now = memory.now()
            expires = None if lease_seconds is None else now + lease_seconds
            memory.save(leases.committed(memory.kept, generation, expires, now))
            memory.note("commit", ())
            return self.lease

    def save_again(self) -> None:
        """Saves what a full disk did not take. To be called now and then."""
        with self._memory.lock:
            self._memory.save_again()

    # -- changes -------------------------------------------------------------------------------

    def stage(self, desired: DesiredState, lease_seconds: float) -> ApplyReport:
        """Never raises: the report has the refusals. After a report without success the server is
        on its baseline; or the lease says `failed`; or this very state was committed before, and
        the agent tries until it is whole."""
        started = time.monotonic()
        with self._changing:
            self._pay_first()
            outcome = self._settle(staging.stage(self._context, desired, lease_seconds))
        report = self._report(desired.generation, outcome, started)
        return report.model_copy(update={"server": desired.server})

    def restore(self, generation: int) -> ApplyReport:
        """Refuses in its report, with nothing touched, to take something away from another program.
        Raises LeaseRefusedError where a newer generation is in force; EffectError where this one
        never came, and the agent cannot save that it must not come later."""
        started = time.monotonic()
        with self._changing:
            self._pay_first()
            outcome = self._settle(restoring.restore(self._context, generation))
        return self._report(generation, outcome, started)

    def destroy(self, plan_name: str) -> ApplyReport:
        """Refuses as `restore` does. Raises LeaseRefusedError where another plan is in force."""
        started = time.monotonic()
        with self._changing:
            leases.check_destroy(self._memory.kept, plan_name)
            self._pay_first()
            outcome = self._settle(restoring.destroy(self._context))
        return self._report(self.lease.highest_generation, outcome, started)

    def restore_from_marks(self) -> ApplyReport:
        """Takes back what carries marks that no state on disk knows. Raises EffectError."""
        started = time.monotonic()
        with self._changing:
            outcome = self._settle(restoring.restore_from_marks(self._context))
        return self._report(self.lease.highest_generation, outcome, started)

    def give_up(self, nic: str) -> tuple[str, ...]:
        """Forgets what is owed to a NIC that never comes back, and says what that was; empty where
        nothing is owed to it. Raises EffectError where that cannot be saved."""
        memory = self._memory
        with memory.lock:
            ledger = memory.kept.ledger
            given_up = tuple(debt for debt in ledger.owed if debt.nic == nic)
            rest = without_debts(ledger, given_up)
            if given_up:
                memory.save(memory.kept.model_copy(update={"ledger": rest}))
        said = owed_sentences(ledger.model_copy(update={"owed": given_up}))
        if said:
            memory.note("given up", (), detail="; ".join(said))
        return said

    # -- what the agent does by itself -----------------------------------------------------------

    def resume(self) -> ApplyReport | None:
        """To be called at the agent's start: undoes a change that was interrupted, or makes the
        state in force whole. What fails is due again in `tick`."""
        self._context.in_force_is_applied = False
        with self._memory.lock:
            self._memory.save_clocks()
        return self.tick()

    def tick(self) -> ApplyReport | None:
        """Does what is due: brings the baseline back where the lease says so, or makes the state in
        force whole, or looks for drift. None: nothing was due."""
        started = time.monotonic()
        with self._changing:
            generation = self.lease.generation
            outcome = self._do_what_is_due()
            if outcome is None:
                return None
            self._settle(outcome)
        return self._report(generation, outcome, started)

    def seconds_until_due(self) -> float | None:
        """Seconds until `tick` has something to do; None: nothing will happen by itself."""
        context = self._context
        with self._memory.lock:
            now = self._memory.now()  # First, because it may move expiries along.
            kept = self._memory.kept
        retry = context.retry.seconds_until_next()
        due = leases.seconds_until_due(kept, now, retry)
        due = _soonest(due, self._paying.seconds_until_look())
        if kept.desired is None or not kept.lease.is_in_force:
            return due
        look = self._healing.seconds_until_look() if context.in_force_is_applied else retry
        return _soonest(due, look)

    def notice(self, *, switch_restarted: bool = False) -> None:
        """Something of the server's network may have changed: `tick` is to look at it soon."""
        self._healing.notice(switch_restarted=switch_restarted)
        self._paying.notice()

    def _do_what_is_due(self) -> Outcome | None:
        context = self._context
        if (outcome := restoring.restore_where_due(context)) is not None:
            return outcome
        paid, looks = None, self._healing.seconds_until_look() <= 0
        if (owed_in := self._paying.seconds_until_look()) is not None and (owed_in == 0 or looks):
            paid = self._paying.pay()
        outcome = self._look_after_the_state_in_force()
        if paid is None or outcome is None:
            return paid or outcome
        return Outcome(
            (*paid.changes, *outcome.changes),
            (*paid.refusals, *outcome.refusals),
            outcome.read_back,
        )

    def _look_after_the_state_in_force(self) -> Outcome | None:
        context, kept = self._context, self._memory.kept
        if kept.desired is None:
            return None
        if not context.in_force_is_applied:
            outcome = restoring.make_whole(context, kept.desired)
            if context.in_force_is_applied:  # Drift is left, which is to be told as such.
                self._healing.notice()
            return outcome
        if self._healing.seconds_until_look() <= 0:
            return self._healing.look(kept.desired)
        return None

    def _pay_first(self) -> None:
        if self._paying.seconds_until_look() is not None:
            self._paying.pay()

    def _settle(self, outcome: Outcome) -> Outcome:
        """To be called with the change lock held."""
        if outcome.read_back:
            self._context.in_force_is_applied = True
            self._context.awaited = frozenset()
            self._context.retry.succeeded()
            self._healing.begin_anew()
        return outcome

    def _report(self, generation: int, outcome: Outcome, started: float) -> ApplyReport:
        """started: by time.monotonic."""
        return ApplyReport(
            server=self._context.facts.server,
            generation=generation,
            changes=outcome.changes,
            succeeded=not outcome.refusals,
            refusals=outcome.refusals,
            wall_seconds=time.monotonic() - started,
        )


def _soonest(*seconds: float | None) -> float | None:
    return min((s for s in seconds if s is not None), default=None)
