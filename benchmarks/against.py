"""Counts for and against `auto`. No rival counts as beaten that only had too little time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from placewire.optimizer.published.comparison.ranking import TIE

# late: the clock ended the rival before it was shorter. unplaced: it has no placement, and more
# time would give it none.
Outcome = Literal["won", "lost", "late", "unplaced"]
_APART: tuple[tuple[Outcome, str], ...] = (
    ("late", "that the clock ended before they were shorter"),
    ("unplaced", "without a placement"),
)


def outcome(auto: float | None, rival: float | None, *, stopped: bool) -> Outcome:
    """Steps in seconds, None without a placement. stopped: whether the clock ended the rival. What
    it had then can only become shorter: it counts against `auto`, and never for it."""
    if rival is not None and (auto is None or auto > (1 + TIE) * rival):
        return "lost"
    if stopped:
        return "late"
    return "unplaced" if rival is None else "won"


@dataclass
class Tally:
    """Over graphs, or over columns of a graph: `each` names which. decided: those with a rival that
    counts; best: those where `auto` is as short as all that count."""

    each: str
    steps: Counter[Outcome] = field(default_factory=Counter)
    decided: int = 0
    best: int = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Those of all rivals of one graph or column."""
        found = Counter(outcomes)
        self.steps += found
        self.decided += bool(found["won"] or found["lost"])
        self.best += bool(found["won"]) and not found["lost"]

    def told(self) -> str:
        won, lost = self.steps["won"], self.steps["lost"]
        text = (
            f"Of {won + lost} steps of other methods, auto is as short, within {TIE:.0%}, as "
            f"{won}, or shorter; on {self.best} of {self.decided} {self.each} it is so of all that "
            "count."
        )
        apart = [f"{self.steps[name]} {why}" for name, why in _APART if self.steps[name]]
        return f"{text} Not counted: {', and '.join(apart)}." if apart else text
