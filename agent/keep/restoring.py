"""Brings back what a lease goes back to, as far as that takes nothing away from others."""

from __future__ import annotations

from placewire.agent.contract.state import Refusal
from placewire.agent.keep.attempts import Attempts
from placewire.agent.keep.making import Maker
from placewire.agent.keep.reports import KEEPS_TRYING, Outcome, Reports, changes_of, told
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.drift import find_drift
from placewire.agent.reconcile.effects import EffectError, Network
from placewire.agent.reconcile.lease import Kept
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.store import Memory


class Restoring:
    """Its methods are called by whoever holds the keeper's change lock."""

    def __init__(
        self, network: Network, memory: Memory, attempts: Attempts, maker: Maker, reports: Reports
    ) -> None:
        self._network = network
        self._memory = memory
        self._attempts = attempts
        self._maker = maker
        self._reports = reports

    def in_the_way(self, aim: Kept) -> tuple[Refusal, ...]:
        """What of others would go with a change to `aim`. Where the server cannot be read now,
        nothing is known: the change is begun, fails, and is tried again."""
        try:
            observed = self._network.observe(unmarked(aim.desired, aim.ledger))
        except EffectError:
            return ()
        return find_drift(aim.desired, observed, aim.ledger).in_the_way

    def bring_back(self) -> Outcome:
        """Makes what `begin_restore` aimed at true."""
        kept = self._memory.kept
        self._attempts.begin()
        try:
            steps = self._maker.make_so(kept.desired, kept.ledger, "restore")
        except Exception as error:
            # Whatever it was: the lease must say that the baseline is not back.
            self._attempts.failed(error)
            return self._failed(kept, told(error))
        with self._memory.lock:
            self._memory.hold(leases.restored(self._memory.kept))
        return changes_of(steps), ()

    def _failed(self, kept: Kept, what: str) -> Outcome:
        news = what != kept.lease.detail
        with self._memory.lock:
            self._memory.hold(leases.failed(self._memory.kept, what))
        if news:
            self._memory.note("failed", (), detail=what)
        return (), (self._reports.failure(what, KEEPS_TRYING),)
