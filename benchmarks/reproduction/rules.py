"""The rules by which numbers decide whether a claim holds.

A number may be known in part: a search that its time limit ended has a step of at most what it
found, and takes at least as long as it was given. A rule decides where what is known suffices, so
that no method fails for lack of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

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


class Rule(Protocol):
    @property
    def words(self) -> str: ...

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures that it reads."""
        ...

    def judged(self, found: Figures) -> Judged:
        """For one model."""
        ...

    def decided(self, measured: Between) -> bool | None: ...

    def shown(self, number: float) -> str: ...


@dataclass(frozen=True)
class AtMost:
    """A figure is at most `factor` times the least of others; with a factor below 1 it is less in
    any case, whatever the signs. A rival without a placement counts as one that takes for ever only
    where the paper says so of it, too: otherwise it is the memories that differ."""

    left: str
    right: tuple[str, ...]
    factor: float = 1.0

    @property
    def words(self) -> str:
        named = ", ".join(f"`{name}`" for name in self.right)
        least = f"the least of {named}" if len(self.right) > 1 else named
        times = "" if self.factor == 1 else f"{self.factor:.3g} times "
        return f"`{self.left}` is at most {times}{least}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.left, *self.right)

    def judged(self, found: Figures) -> Judged:
        if why := _missing(self.figures, found):
            return Judged(None, why=why)
        counting = tuple(name for name in self.right if _counts(found[name]))
        without = tuple(name for name in self.right if name not in counting)
        if found[self.left].ended == "none" or not counting:
            return Judged(None, why=_reason(self.figures, found))
        left, right = found[self.left].number(), least([found[name] for name in counting])
        if left.low == inf and right.low == inf:
            return Judged(None, why="no method has a placement")
        holds = self._holds(left, right)
        why = "" if holds is not None else _undecided(self.figures, found)
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
class Within:
    """The least of some figures lies between two limits. place: which of the figure's numbers."""

    of: tuple[str, ...]
    at_least: float = -inf
    at_most: float = inf
    unit: Literal["s", "%", ""] = ""
    place: int = 0

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

    def judged(self, found: Figures) -> Judged:
        if why := _missing(self.of, found):
            return Judged(None, why=why)
        there = [found[name] for name in self.of if found[name].ended != "none"]
        if not there:
            return Judged(None, why=_reason(self.of, found))
        measured = least(there, self.place)
        holds = self.decided(measured)
        return Judged(holds, measured, "" if holds is not None else _undecided(self.of, found))

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
class Cut:
    """A reduction makes a figure at least so many times less."""

    of: str
    times: float

    @property
    def words(self) -> str:
        return f"`{self.of}` falls to at most 1/{self.times:.3g}"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.of,)

    def judged(self, found: Figures) -> Judged:
        if why := _missing(self.figures, found):
            return Judged(None, why=why)
        one = found[self.of]
        if one.ended == "none":
            return Judged(None, why=one.why)
        before, after = one.number(0).low, one.number(1).high
        if after <= 0:
            return Judged(None, why=f"of `{self.of}` nothing is left: {one.text}")
        measured = Between(before / after, before / after)
        return Judged(self.decided(measured), measured)

    def decided(self, measured: Between) -> bool | None:
        return measured.low >= self.times

    def shown(self, number: float) -> str:
        return f"1/{number:.3g}"


@dataclass(frozen=True)
class Placed:
    """The method has a placement within all memories."""

    of: str

    @property
    def words(self) -> str:
        return f"`{self.of}` has a placement"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.of,)

    def judged(self, found: Figures) -> Judged:
        if why := _missing(self.figures, found):
            return Judged(None, why=why)
        one = found[self.of]
        if one.ended == "none" or (one.ended == "clock" and not one.known):
            return Judged(None, why=OUT_OF_TIME if one.ended == "clock" else one.why)
        return Judged(one.ended != "unplaced")

    def decided(self, measured: Between) -> bool | None:
        return None

    def shown(self, number: float) -> str:
        return f"{number:g}"


@dataclass(frozen=True)
class Passes:
    """Every case of a test that works an example passes."""

    of: str

    @property
    def words(self) -> str:
        return f"test `{self.of}` passes"

    @property
    def figures(self) -> tuple[str, ...]:
        return (self.of,)

    def judged(self, found: Figures) -> Judged:
        if why := _missing(self.figures, found):
            return Judged(None, why=why)
        part = found[self.of].number()
        return Judged(self.decided(part), part)

    def decided(self, measured: Between) -> bool | None:
        return measured.low == 1

    def shown(self, number: float) -> str:
        return "passes" if number == 1 else f"{number:.0%} of the cases pass"


def least(of: Sequence[Finding], place: int = 0) -> Between:
    numbers = [one.number(place) for one in of]
    return Between(min(one.low for one in numbers), min(one.high for one in numbers))


def _missing(names: Sequence[str], found: Figures) -> str:
    return NOT_RUN if any(name not in found for name in names) else ""


def _undecided(names: Sequence[str], found: Figures) -> str:
    return DISTURBED if any(found[name].disturbed for name in names) else OUT_OF_TIME


def _counts(rival: Finding) -> bool:
    """Whether a method can be compared with this one."""
    return rival.ended != "none" and (rival.ended != "unplaced" or rival.paper == OUT_OF_MEMORY)


def _reason(names: Sequence[str], found: Figures) -> str:
    for one in (found[name] for name in names):
        if one.ended == "none":
            return one.why or "there is no figure"
    one = found[names[-1]]
    return f"{one.why}; the paper does not say that it had none: the memories differ"


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
