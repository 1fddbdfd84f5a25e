"""Makes a state so: applies the difference to what there is, and reads back until it shows."""

from __future__ import annotations

import time
from collections.abc import Collection

from placewire.agent.contract.state import DesiredState, Ledger, ObservedState, Refusal
from placewire.agent.reconcile.drift import Drift, find_drift, told_in_the_way
from placewire.agent.reconcile.effects import Network
from placewire.agent.reconcile.steps import Step
from placewire.agent.reconcile.unmarkable import unmarked
from placewire.agent.store import Memory

# ovs-vswitchd programs the kernel after it has taken a transaction in.
VERIFY_SECONDS = 6.0
VERIFY_PAUSE_SECONDS = 0.1


class NotVerifiedError(Exception):
    """The read-back does not show what was applied; the message lists what differs."""


class Maker:
    def __init__(self, network: Network, memory: Memory, verify_seconds: float) -> None:
        self._network = network
        self._memory = memory
        self._verify_seconds = verify_seconds
        # How long the last reading of the network took.
        self.read_seconds = 0.0

    def make_so(
        self,
        desired: DesiredState | None,
        ledger: Ledger,
        event: str,
        observed: ObservedState | None = None,
    ) -> tuple[Step, ...]:
        """Applies the difference and reads it back. Raises EffectError, NotVerifiedError.

        observed: as it was just read. A stage that cannot be noted in the audit log is not done;
        undoing is.
        """
        before = (
            self._look(desired, ledger, ())
            if observed is None
            else find_drift(desired, observed, ledger)
        )
        steps = self._apply(before.steps, desired, event)
        if left := self._read_back(desired, ledger, ()):
            raise NotVerifiedError(_told(left))
        return steps

    def heal(
        self, desired: DesiredState, ledger: Ledger, leave: Collection[str]
    ) -> tuple[tuple[Step, ...], tuple[Refusal, ...]]:
        """The same for what is in force, except these subjects, and what others are in the way of:
        that is returned beside the steps done. Raises EffectError, NotVerifiedError."""
        steps = self._apply(self._look(desired, ledger, leave).steps, desired, "heal")
        left = self._read_back(desired, ledger, leave)
        if left.steps or left.faults:
            raise NotVerifiedError(_told(left))
        return steps, left.in_the_way

    def _apply(
        self, steps: tuple[Step, ...], desired: DesiredState | None, event: str
    ) -> tuple[Step, ...]:
        if steps:
            (self._memory.audit if event == "stage" else self._memory.note)(event, steps)
            self._network.apply(steps, desired.plan_name if desired else "")
        return steps

    def _read_back(
        self, desired: DesiredState | None, ledger: Ledger, leave: Collection[str]
    ) -> Drift:
        """What differs when it has settled: nothing, or only what others are in the way of, or what
        does not go away in time."""
        deadline = time.monotonic() + self._verify_seconds
        while True:
            left = self._look(desired, ledger, leave)
            if not (left.steps or left.faults) or time.monotonic() > deadline:
                return left
            time.sleep(VERIFY_PAUSE_SECONDS)

    def _look(self, desired: DesiredState | None, ledger: Ledger, leave: Collection[str]) -> Drift:
        began = time.monotonic()
        observed = self._network.observe(unmarked(desired, ledger))
        self.read_seconds = time.monotonic() - began
        return find_drift(desired, observed, ledger).without(leave)


def _told(left: Drift) -> str:
    due = left.due_sentences()
    wrong = ["read back and not as wanted: " + "; ".join(due)] if due else []
    return "; ".join([*told_in_the_way(left.in_the_way), *wrong])
