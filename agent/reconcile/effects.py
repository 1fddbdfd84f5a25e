"""The effects that the keeper's decisions need, as Protocols: the server's network and the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from placewire.agent.contract.state import ObservedState
from placewire.agent.reconcile.lease import Kept
from placewire.agent.reconcile.steps import Step
from placewire.agent.reconcile.unmarkable import Unmarked


class EffectError(Exception):
    """A change of the server failed. The message: what was tried, and what the system answered."""


class NotDurableError(EffectError):
    """The network is as asked, but the disk does not take that."""


class NoAnswerError(EffectError):
    """Open vSwitch, or a tool that asks it, took its whole time and gave no answer: it hangs, or
    works too slowly."""


class UnreadableError(EffectError):
    """Part of the server could not be read; reading again may work."""


class Network(Protocol):
    def observe(self, sought: Unmarked) -> ObservedState:
        """Reads back all that is Placewire's. Raises UnreadableError."""

    def apply(self, steps: Sequence[Step], plan_name: str) -> None:
        """Executes the steps in order, up to the first that fails, and marks what it makes with the
        plan's name. Raises EffectError."""

    def make_durable(self) -> None:
        """Returns once a loss of power takes back nothing of what was applied, but for what the
        kernel forgets at every boot. Raises EffectError."""


class Store(Protocol):
    def load(self) -> Kept:
        """What is on disk; Kept() where there is nothing."""

    def save(self, kept: Kept) -> None:
        """Returns once `kept` is durable. Raises OSError."""

    def audit(self, records: Sequence[dict[str, Any]]) -> None:
        """Appends all records to the audit log, or none."""
