"""The rules by which numbers decide whether a claim holds.

A number may be known in part: a search that its time limit ended has a step of at most what it
found, and takes at least as long as it was given. A rule decides where what is known suffices, so
that no method fails for lack of time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from benchmarks.reproduction.findings import Finding
from placewire.optimizer.published.comparison.our_figures import Between
from placewire.optimizer.published.comparison.ranking import TIE

# Why a rule cannot decide, though there are figures, or may be some.
OUT_OF_TIME, NOT_RUN, DISTURBED = "out of time", "not run yet", "not run undisturbed"
# Instead of a ratio, where a case is decided because one method has no placement.
UNPLACED = "no placement"
# A paper prints this where a method has no placement.
OUT_OF_MEMORY = "OOM"
# Figures within a hundredth are alike, as in `optimizer compare`: what is shorter, less or grows is
# so by more.
LESS = 1 / (1 + TIE)
# Figures are compared as they are printed by computers, not as real numbers.
_ROUNDING = 1e-9
Figures = Mapping[str, Finding]


@dataclass(frozen=True)
class Judged:
    """holds: None where the figures cannot tell, for the reason `why`. measured: what the rule
    compares with its limit. without: the rivals that count neither for nor against."""

    holds: bool | None
    measured: Between | None = None
    why: str = ""
    without: tuple[str, ...] = ()


class Rule(ABC):
    @property
    @abstractmethod
    def words(self) -> str: ...

    @property
    @abstractmethod
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that it reads."""

    def judged(self, found: Figures) -> Judged:
        """For one model."""
        if any(name not in found for name in self.figures):
            return Judged(None, why=NOT_RUN)
        return self._judged({name: found[name] for name in self.figures})

    @abstractmethod
    def _judged(self, read: Figures) -> Judged:
        """read: the figures that it reads, in their order."""

    @abstractmethod
    def decided(self, measured: Between) -> bool | None: ...

    @abstractmethod
    def shown(self, number: float) -> str: ...


@dataclass(frozen=True)
class AtMost(Rule):
    """A figure is at most `factor` times the least of others; with a factor below 1 it is less in
    any case, whatever the signs. A rival without a placement counts as one that takes for ever only
    where the paper says so of it, too: otherwise it is the memories that differ. It is left out
    then: the figure may be too large without it, but is not known to be small enough. unless: a
    figure that must not be small enough itself, or the rule would say nothing of the first."""

    left: str
    right: tuple[str, ...]
    factor: float = 1.0
    unless: str = ""

    @property
    def words(self) -> str:
        named = ", ".join(f"`{name}`" for name in self.right)
        least = f"the least of {named}" if len(self.right) > 1 else named
        times = "" if self.factor == 1 else f"{self.factor:.3g} times "
        unless = f", which `{self.unless}` is not" if self.unless else ""
        return f"`{self.left}` is at most {times}{least}{unless}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.left, *self.right, *([self.unless] if self.unless else []))

    def _judged(self, read: Figures) -> Judged:
        found = self._compared(self.left, read)
        if not found.holds or not self.unless:
            return found
        other = self._compared(self.unless, read)
        if other.holds is False:
            return found
        why = f"`{self.unless}` keeps the rule as well" if other.holds else other.why
        return Judged(None, found.measured, why, found.without)

    def _compared(self, name: str, read: Figures) -> Judged:
        read = {one: read[one] for one in (name, *self.right)}
        counting = tuple(rival for rival in self.right if _counts(read[rival]))
        without = tuple(rival for rival in self.right if rival not in counting)
        if read[name].ended == "none" or not counting:
            return Judged(None, why=_reason(read))
        left, right = read[name].number(), _least(read[rival] for rival in counting)
        if left.low == inf and right.low == inf:
            return Judged(None, why="no method has a placement")
        holds = self._holds(left, right)
        if holds and without:
            return Judged(None, why=_reason({rival: read[rival] for rival in without}))
        why = "" if holds is not None else _undecided(read)
        if holds is not None and inf in (left.low, right.low):
            why = UNPLACED
        return Judged(holds, _ratio(left, right), why, without)

    def _holds(self, left: Between, right: Between) -> bool | None:
        limit = Between(self.factor * right.low, self.factor * right.high)
        strict = self.factor < 1
        if left.low > limit.high + _slack(limit.high) or (strict and left.low >= right.high):
            return False
        below = left.high < inf and left.high <= limit.low + _slack(limit.low)
        return True if below and (not strict or left.high < right.low) else None

    def decided(self, measured: Between) -> bool | None:
        return _below(measured, self.factor)

    def shown(self, number: float) -> str:
        return f"{number:.3g}x"


@dataclass(frozen=True)
class Within(Rule):
    """The least of some figures lies between two limits."""

    of: tuple[str, ...]
    at_least: float = -inf
    at_most: float = inf
    unit: Literal["s", "%", ""] = ""

    @property
    def words(self) -> str:
        named = " or ".join(f"`{name}`" for name in self.of)
        limits = []
        if self.at_least > -inf:
            limits.append(f"at least {self.shown(self.at_least)}")
        if self.at_most < inf:
            limits.append(f"at most {self.shown(self.at_most)}")
        return f"{named} is {' and '.join(limits)}"

    @property
    def figures(self) -> tuple[str, ...]:
        return self.of

    def _judged(self, read: Figures) -> Judged:
        there = [one for one in read.values() if one.ended != "none"]
        if not there:
            return Judged(None, why=_reason(read))
        measured = _least(there)
        holds = self.decided(measured)
        return Judged(holds, measured, "" if holds is not None else _undecided(read))

    def decided(self, measured: Between) -> bool | None:
        above = _below(Between(-measured.high, -measured.low), -self.at_least)
        parts = (above, _below(measured, self.at_most))
        return False if False in parts else None if None in parts else True

    def shown(self, number: float) -> str:
        if self.unit == "%":
            return f"{100 * number:.3g} %"
        digits = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
        return f"{digits} {self.unit}".rstrip()


@dataclass(frozen=True)
class _OfOne(Rule):
    """What a single figure shows is at least so much."""

    of: str
    at_least: float = 1.0

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.of,)

    def _judged(self, read: Figures) -> Judged:
        one = read[self.of]
        measured = _reason(read) if one.ended == "none" else self._measured(one)
        if isinstance(measured, str):
            return Judged(None, why=measured)
        return Judged(self.decided(measured), measured)

    @abstractmethod
    def _measured(self, one: Finding) -> Between | str:
        """Or why the figure cannot tell."""

    def decided(self, measured: Between) -> bool | None:
        return measured.low >= self.at_least


class Cut(_OfOne):
    """A reduction makes a figure at least so many times less."""

    @property
    def words(self) -> str:
        return f"`{self.of}` falls to at most 1/{self.at_least:.3g}"

    def _measured(self, one: Finding) -> Between | str:
        before, after = one.number(0).low, one.number(1).high
        if after <= 0:
            return f"of `{self.of}` nothing is left: {one.text}"
        return Between(before / after, before / after)

    def shown(self, number: float) -> str:
        return f"1/{number:.3g}"


class Placed(_OfOne):
    """The method has a placement within all memories."""

    @property
    def words(self) -> str:
        return f"`{self.of}` has a placement"

    def _measured(self, one: Finding) -> Between | str:
        if one.ended == "clock" and not one.known:
            return OUT_OF_TIME
        has = float(one.ended != "unplaced")
        return Between(has, has)

    def shown(self, number: float) -> str:
        return "placed" if number == 1 else UNPLACED


class Passes(_OfOne):
    """Every case of a test that works an example passes."""

    @property
    def words(self) -> str:
        return f"test `{self.of}` passes"

    def _measured(self, one: Finding) -> Between | str:
        return one.number()

    def shown(self, number: float) -> str:
        return "passes" if number == 1 else f"{number:.0%} of the cases pass"


def _least(of: Iterable[Finding]) -> Between:
    numbers = [one.number() for one in of]
    return Between(min(one.low for one in numbers), min(one.high for one in numbers))


def _undecided(read: Figures) -> str:
    return DISTURBED if any(one.disturbed for one in read.values()) else OUT_OF_TIME


def _counts(rival: Finding) -> bool:
    """Whether a method can be compared with this one."""
    return rival.ended != "none" and (rival.ended != "unplaced" or rival.paper == OUT_OF_MEMORY)


def _reason(read: Figures) -> str:
    *_, last = read.values()
    for one in read.values():
        if one.ended == "none":
            return one.why or "there is no figure"
    return f"{last.why}; the paper does not say that it had none: the memories differ"


def _ratio(left: Between, right: Between) -> Between | None:
    """None where a number is not above zero, or one method has no placement."""
    if left.high <= 0 or right.high <= 0 or inf in (left.low, right.low):
        return None
    return Between(max(left.low, 0.0) / right.high, left.high / right.low if right.low > 0 else inf)


def _slack(limit: float) -> float:
    return _ROUNDING * max(1.0, abs(limit)) if abs(limit) < inf else 0.0


def _below(measured: Between, limit: float) -> bool | None:
    if measured.high <= limit + _slack(limit):
        return True
    return False if measured.low > limit + _slack(limit) else None
