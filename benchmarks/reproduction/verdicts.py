"""Whether a claim holds, over all models of which it is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from benchmarks.reproduction.entry import Claim
from benchmarks.reproduction.findings import Finding
from benchmarks.reproduction.rules import NOT_RUN, OUT_OF_TIME, Judged, Rule
from placewire.optimizer.published.comparison.reproducing import Between

Kind = Literal[
    "holds", "does not hold", "out of time", "not run yet", "cannot be asked here"
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "holds", "does not hold", "out of time", "not run yet", "cannot be asked here",
)  # fmt: skip
ByModel = Mapping[str, Mapping[str, Finding]]


@dataclass(frozen=True)
class Verdict:
    """ours: what the rules measured, as text. told: the kind and how many cases were for it. why:
    of what cannot be asked."""

    kind: Kind
    told: str
    ours: str
    why: str = ""


def verdict_of(claim: Claim, found: ByModel) -> Verdict:
    """found: the figures of each model; those of one that was not run are empty."""
    models = claim.models or tuple(found)
    cases = [(rule, rule.judged(found.get(model, {}))) for model in models for rule in claim.rules]
    judged = [one for _, one in cases]
    ours = _ours(claim, cases)
    if claim.holds == "on average":
        return _averaged(claim.rules[0], judged, ours)
    held = [one.holds for one in judged if one.holds is not None]
    late, not_run = (sum(one.why == why for one in judged) for why in (OUT_OF_TIME, NOT_RUN))
    decided = any(held) if claim.holds == "once" else bool(held) and all(held)
    if decided:
        kind: Kind = "holds"
    elif claim.holds == "always" and held:
        kind = "does not hold"
    elif late:
        kind = "out of time"
    elif not_run:
        kind = "not run yet"
    else:
        kind = "does not hold" if held else "cannot be asked here"
    return Verdict(kind, _told(kind, held, late, not_run), ours, _why(judged))


def _averaged(rule: Rule, judged: Sequence[Judged], ours: str) -> Verdict:
    known = [one.measured for one in judged if one.measured is not None]
    late, not_run = (sum(one.why == why for one in judged) for why in (OUT_OF_TIME, NOT_RUN))
    if not_run or not known:
        kind: Kind = "not run yet" if not_run else "out of time" if late else "cannot be asked here"
        return Verdict(kind, kind, ours, _why(judged))
    mean = Between(
        sum(one.low for one in known) / len(known), sum(one.high for one in known) / len(known)
    )
    holds = rule.decided(mean)
    if holds is None:
        return Verdict("out of time", "out of time", ours)
    shown = f"{_shown(rule, mean)} on average"
    return Verdict(*(("holds", "holds") if holds else ("does not hold", "does not hold")), shown)


def _told(kind: Kind, held: Sequence[bool], late: int, not_run: int) -> str:
    parts = []
    if held and kind in ("holds", "does not hold"):
        parts.append(f"{sum(held)} of {len(held)}")
    if late and kind != "out of time":
        parts.append(f"{late} out of time")
    if not_run and kind != "not run yet":
        parts.append(f"{not_run} not run")
    return f"{kind} ({'; '.join(parts)})" if parts else kind


def _why(judged: Sequence[Judged]) -> str:
    return next((one.why for one in judged if one.why not in ("", OUT_OF_TIME, NOT_RUN)), "")


def _ours(claim: Claim, cases: Sequence[tuple[Rule, Judged]]) -> str:
    """The range of what is known exactly, or else the first of what is known in part."""
    if claim.holds == "once" and (held := [case for case in cases if case[1].holds]):
        cases = held
    known = [(rule, one.measured) for rule, one in cases if one.measured is not None]
    exact = [(rule, one.low) for rule, one in known if one.low == one.high]
    if exact:
        (first, low), (last, high) = (pick(exact, key=lambda case: case[1]) for pick in (min, max))
        lowest, highest = first.shown(low), last.shown(high)
        return lowest if lowest == highest else f"{lowest} to {highest}"
    decided = [
        (rule, one.measured) for rule, one in cases if one.measured and one.holds is not None
    ]
    some = decided or known
    return _shown(*some[0]) if some else "-"


def _shown(rule: Rule, number: Between) -> str:
    if number.low == number.high:
        return rule.shown(number.low)
    if number.high < inf:
        return f"<= {rule.shown(number.high)}"
    return f">= {rule.shown(number.low)}" if number.low > 0 else "-"
