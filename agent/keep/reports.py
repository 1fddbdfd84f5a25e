"""What a keeper tells of a change: the changes themselves, and why one failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from placewire.agent.contract.state import ApplyReport, Change, Refusal
from placewire.agent.keep.making import NotVerifiedError
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import Step
from placewire.agent.reconcile.validate import ServerFacts

log = logging.getLogger(__name__)

# What was changed, and what could not be.
Outcome = tuple[tuple[Change, ...], tuple[Refusal, ...]]
NOTHING_DONE: Outcome = ((), ())

KEEPS_TRYING = "repair that; the agent keeps trying"


class Reports:
    def __init__(self, facts: Callable[[], ServerFacts]) -> None:
        self._facts = facts

    def failure(self, what: str, remedy: str) -> Refusal:
        return Refusal(what=what, where=f"server {self._facts().server}", remedy=remedy)

    def report(self, generation: int, outcome: Outcome, started: float) -> ApplyReport:
        """started: by time.monotonic."""
        changes, found = outcome
        return ApplyReport(
            server=self._facts().server,
            generation=generation,
            changes=changes,
            verified=not found,
            refusals=found,
            wall_seconds=time.monotonic() - started,
        )


def changes_of(steps: Sequence[Step]) -> tuple[Change, ...]:
    return tuple(step.as_change() for step in steps)


def told(error: Exception) -> str:
    """What a report says of it; a mistake of ours is logged with its traceback beside that."""
    if isinstance(error, (EffectError, NotVerifiedError)):
        return str(error)
    log.error("unexpected", exc_info=error)
    return f"{type(error).__name__}: {error}"
