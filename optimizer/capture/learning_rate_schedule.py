"""Computes the learning rate of a step from the step's number alone.

A training that resumes at step k therefore continues with the rate of step k. With
torch.optim.lr_scheduler.LambdaLR, `LearningRateSchedule.factor_at` gives a plain training loop the
same rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.given_numbers import with_floats

# The options of each schedule beside warmup_steps; total_steps and every_steps are mandatory.
TAKES: Mapping[str, tuple[str, ...]] = {
    "constant": (),
    "linear": ("total_steps", "final"),
    "cosine": ("total_steps", "final"),
    "step": ("every_steps", "decay"),
}


@dataclass(frozen=True)
class LearningRateSchedule:
    """A factor of the learning rate, by step number from 0. Raises CaptureError.

    name          constant: 1; linear, cosine: from 1 to `final` at step total_steps, then constant;
                  step: multiplied by `decay` (0.1) after every `every_steps`
    warmup_steps  first the factor rises evenly, and reaches 1 in the last of these steps
    total_steps   includes the warm-up steps
    final         from 0 to 1; 0 if not given
    """

    name: str = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final: float | None = None
    every_steps: int | None = None
    decay: float | None = None

    @staticmethod
    def of(document: Mapping[str, Any]) -> LearningRateSchedule:
        """document: the fields. Raises TypeError for an unknown field, and what is no number."""
        return LearningRateSchedule(**with_floats(document, ("final", "decay")))

    def __post_init__(self) -> None:
        if self.name not in TAKES:
            raise CaptureError(f"schedule {self.name!r} is not known; accepted: {', '.join(TAKES)}")
        takes = TAKES[self.name]
        for key in ("total_steps", "final", "every_steps", "decay"):
            if key not in takes and getattr(self, key) is not None:
                raise CaptureError(
                    f"schedule {self.name} takes no {key}; accepted: "
                    f"{', '.join(('warmup_steps', *takes))}"
                )
        for key in ("total_steps", "every_steps"):
            if key in takes and not getattr(self, key):
                raise CaptureError(f"schedule {self.name} needs {key}, a whole number from 1")
        if self.warmup_steps < 0:
            raise CaptureError(f"warmup_steps {self.warmup_steps} is below 0")
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise CaptureError(
                f"total_steps {self.total_steps} must be more than the {self.warmup_steps} of "
                "warmup_steps, which it includes"
            )
        for key in ("final", "decay"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 1:
                raise CaptureError(f"{key} {value:g} is outside 0 to 1")

    def factor_at(self, step: int) -> float:
        """Returns the factor of the step, from 0 to 1."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        after = step - self.warmup_steps
        if self.every_steps:
            return float((0.1 if self.decay is None else self.decay) ** (after // self.every_steps))
        if not self.total_steps:
            return 1.0
        final = self.final or 0.0
        passed = min(1.0, after / (self.total_steps - self.warmup_steps))
        left = 1 - passed if self.name == "linear" else (1 + math.cos(math.pi * passed)) / 2
        return final + (1 - final) * left

    @property
    def signature(self) -> str:
        """The options that differ from their defaults, as text."""
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"schedule({','.join(given)})" if given else ""
