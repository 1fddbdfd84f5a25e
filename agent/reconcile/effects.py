"""What the decisions of this package need done, as Protocols. Drivers implement them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from placewire.agent.contract.state import ObservedState
from placewire.agent.reconcile.lease import Kept
from placewire.agent.reconcile.steps import Step
from placewire.agent.reconcile.unmarkable import Unmarked


class EffectError(Exception):
    """A change of the server that did not happen: what was tried, and what the system answered."""


class UnreadableError(EffectError):
    """The server could not be read: what could not, and why. Reading again may work."""


class Network(Protocol):
    def observe(self, sought: Unmarked) -> ObservedState:
        """Reads back all that is ours. Raises UnreadableError."""

    def apply(self, steps: Sequence[Step], plan_name: str) -> None:
        """In this order. Raises EffectError at the first step that fails; later ones are left."""


class Store(Protocol):
    def load(self) -> Kept:
        """What is on disk; Kept() where there is nothing."""

    def save(self, kept: Kept) -> None:
        """Durable when it returns."""

    def audit(self, records: Sequence[dict[str, Any]]) -> None:
        """Appends these records to the audit log, all or none."""
