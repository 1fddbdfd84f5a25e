"""The settings of a gradient scaler, as of torch.amp.GradScaler. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.given_numbers import with_floats


@dataclass(frozen=True)
class GradientScaler:
    """How the loss is scaled; the defaults are torch's. Raises CaptureError.

    init_scale       by what the loss of the first step is multiplied
    growth_factor    by what the scale grows after growth_interval steps in a row whose gradients
                     were finite
    backoff_factor   by what the scale shrinks after each step with a gradient that was not
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    @staticmethod
    def of(document: Mapping[str, Any]) -> GradientScaler:
        """document: the fields. Raises TypeError for an unknown field, and what is no number."""
        floats = ("init_scale", "growth_factor", "backoff_factor")
        return GradientScaler(**with_floats(document, floats))

    def __post_init__(self) -> None:
        admitted = {
            "init_scale": (0 < self.init_scale < math.inf, "a finite number above 0"),
            "growth_factor": (1 < self.growth_factor < math.inf, "a finite number above 1"),
            "backoff_factor": (0 < self.backoff_factor < 1, "more than 0 and less than 1"),
            "growth_interval": (
                isinstance(self.growth_interval, int) and self.growth_interval > 0,
                "a whole number from 1",
            ),
        }
        for name, (is_right, accepted) in admitted.items():
            if not is_right:
                given = repr(getattr(self, name)).removesuffix(".0")  # 1, as the user wrote it
                raise CaptureError(f"scaler {name} {given} must be {accepted}")

    @property
    def settings(self) -> Mapping[str, int | float]:
        """What torch's GradScaler.state_dict() has of them."""
        return {
            one.name: getattr(self, one.name) for one in fields(self) if one.name != "init_scale"
        }

    @property
    def signature(self) -> str:
        own = ",".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))
        return f"scaler({own})"
