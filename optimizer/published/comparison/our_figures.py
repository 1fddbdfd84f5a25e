"""A figure of ours: its text, and what is known of its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Shown where there is no figure of ours.
NO_FIGURE = "none"
# itself: the figure is final. clock: more time might have given another one. unplaced: the method
# has no placement within the memories. none: there can be no figure.
Ended = Literal["itself", "clock", "unplaced", "none"]


@dataclass(frozen=True)
class Between:
    """What is known of a number."""

    low: float
    high: float


class NoFigureError(ValueError):
    """Says why there is no figure of ours, and what is known of it all the same."""

    def __init__(self, why: str, ended: Ended = "none", *known: Between) -> None:
        super().__init__(why)
        self.ended: Ended = ended
        self.known = known


@dataclass(frozen=True)
class Ours:
    text: str
    known: tuple[Between, ...]
    ended: Ended = "itself"


def exact(*numbers: float) -> tuple[Between, ...]:
    return tuple(Between(number, number) for number in numbers)
