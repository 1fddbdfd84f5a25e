"""What every kind of lower bound returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Sums taken in another order differ in the last bits; a bound must not exceed the step for that.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """seconds: no placement, order or admissible rates give a shorter step; reason: why."""

    seconds: float
    reason: str


def largest(found: Iterable[Bound]) -> Bound:
    return max(found, key=lambda bound: bound.seconds)
