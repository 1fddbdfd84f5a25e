"""A step as all ranks together did it, from what each says of its own."""

from __future__ import annotations

from dataclasses import dataclass

from placewire.job.contract.specification import StepDone


@dataclass(frozen=True)
class Step:
    """seconds: the slowest rank's. loss: None where no rank computes one."""

    number: int
    seconds: float
    loss: float | None


class Steps:
    """Ranks end a step at different moments, and their messages come in any order."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._under_way: dict[int, list[StepDone]] = {}

    def ended(self, event: StepDone) -> Step | None:
        """The step that this event makes whole, if it does."""
        of_step = self._under_way.setdefault(event.step, [])
        of_step.append(event)
        if len(of_step) < self._ranks:
            return None
        del self._under_way[event.step]
        losses = [one.loss for one in of_step if one.loss is not None]
        return Step(event.step, max(one.seconds for one in of_step), losses[0] if losses else None)
