"""A lower bound with its reason: what the modules of this folder return."""

from __future__ import annotations

from dataclasses import dataclass

# Bounds are lowered by this part, so that rounding in sums never lifts one above the step.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """seconds: no placement, order or admissible rates give a shorter step; reason: why."""

    seconds: float
    reason: str
