"""Joins what all ranks report of a step."""

from __future__ import annotations

from dataclasses import dataclass

from placewire.job.contract.specification import StepDone


@dataclass(frozen=True)
class Step:
    """seconds: of the slowest rank. loss: None where no rank computes one."""

    number: int
    seconds: float
    loss: float | None


class Steps:
    """Ranks end a step at different times, and their events come in any order."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._under_way: dict[int, dict[int, StepDone]] = {}

    def ended(self, event: StepDone) -> Step | None:
        """Returns the step where this is its last missing event, else None."""
        by_rank = self._under_way.setdefault(event.step, {})
        by_rank[event.rank] = event
        if len(by_rank) < self._ranks:
            return None
        of_step = self._under_way.pop(event.step).values()
        losses = [one.loss for one in of_step if one.loss is not None]
        return Step(event.step, max(one.seconds for one in of_step), losses[0] if losses else None)
