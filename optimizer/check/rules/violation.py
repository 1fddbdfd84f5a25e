"""A violation of a rule, and the tolerance within which two numbers count as equal."""

from __future__ import annotations

from dataclasses import dataclass

RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Violation:
    """what: the rule that is broken, with the numbers; where: the operator, device, pair or key."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def within(found: float, limit: float) -> bool:
    """Whether found <= limit within the tolerance; False where one of them is NaN."""
    return found <= limit + RELATIVE_TOLERANCE * abs(limit)
