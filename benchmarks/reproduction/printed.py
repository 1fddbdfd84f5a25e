"""What the papers print, as numbers: a preset has it, and claims take it from there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.reproduction.entry import Claim
from benchmarks.reproduction.rules import Within
from placewire.optimizer.published.comparison.presets import load_preset
from placewire.optimizer.published.comparison.presets.preset import Figure

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Range:
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Range:
        found = list(numbers)
        return cls(min(found), max(found))


class Printed:
    """A table or figure of a paper. A cell without a number (OOM, -) is left out."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self._cells: dict[str, dict[str, list[float]]] = {}
        for one in figures:
            numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(one.paper)]
            if numbers:
                self._cells.setdefault(one.what, {})[one.model] = numbers

    @classmethod
    def in_preset(cls, name: str) -> Printed:
        return cls(load_preset(name).figures)

    def of(self, what: str, model: str) -> float:
        return self._cells[what][model][0]

    def most(self, what: str) -> float:
        return max(numbers[0] for numbers in self._cells[what].values())

    def cuts(self, what: str) -> Range:
        """How many times less the number behind `->` is, over models."""
        return Range.of(before / after for before, after in self._cells[what].values())

    def times(self, larger: str, smaller: str) -> Range:
        """How many times `smaller` is in `larger`, over the models that have both."""
        both = self._cells[larger].keys() & self._cells[smaller].keys()
        return Range.of(self.of(larger, model) / self.of(smaller, model) for model in both)

    def takes_at_most(self, says: str, what: str, *ours: str) -> Claim:
        """says: `Fusion takes`. ours: the figures of ours, if not of the same name."""
        seconds = self.most(what)
        rule = Within(ours or (what,), at_most=seconds, unit="s")
        return Claim(f"{says} at most {seconds:g} s.", f"<= {seconds:g} s", (rule,))
