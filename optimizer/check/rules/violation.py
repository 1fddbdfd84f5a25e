"""One broken rule, and how near two numbers must be to count as equal."""

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
    """found <= limit, rounding aside; False for what is no number."""
    return found <= limit + RELATIVE_TOLERANCE * abs(limit)
