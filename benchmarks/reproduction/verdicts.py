"""Whether a claim holds, over all models of which it is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from benchmarks.reproduction.entry import Claim
from benchmarks.reproduction.findings import Finding
from benchmarks.reproduction.rules import DISTURBED, NOT_RUN, OUT_OF_TIME, Judged, Rule
from placewire.optimizer.published.comparison.reproducing import Between

Kind = Literal[
    "holds", "does not hold", "out of time", "not run yet", "cannot be asked here"
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "holds", "does not hold", "out of time", "not run yet", "cannot be asked here",
)  # fmt: skip
_NOT: Kind = "does not hold"
NEVER: Kind = "cannot be asked here"
# Why a case cannot be decided yet, and how it is counted.
_WAITS = {OUT_OF_TIME: "out of time", DISTURBED: "disturbed", NOT_RUN: "not run"}
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
    held = [one.holds for one in judged if one.holds is not None]
    waits = Counter(one.why for one in judged if one.why in _WAITS)
    why = next((one.why for one in judged if one.why and one.why not in _WAITS), "")
    ours = _ours(claim, cases)
    if claim.holds == "on average":
        mean = _mean([one.measured for one in judged if one.measured is not None])
        holds = None if mean is None or waits[NOT_RUN] else claim.rules[0].decided(mean)
        if holds is None:
            return Verdict(*_waiting(waits), ours, why)
        assert mean is not None
        shown = f"{_shown(claim.rules[0], mean)} on average"
        return Verdict("holds", "holds", shown) if holds else Verdict(_NOT, _NOT, shown)
    decided = any(held) if claim.holds == "once" else bool(held) and all(held)
    fails = bool(held) and not decided and (claim.holds == "always" or not waits)
    if not decided and not fails:
        return Verdict(*_waiting(waits), ours, why)
    parts = [f"{sum(held)} of {len(held)}"]
    parts += [f"{count} {_WAITS[name]}" for name, count in waits.items()]
    kind: Kind = "holds" if decided else _NOT
    return Verdict(kind, f"{kind} ({'; '.join(parts)})", ours, why)


def _waiting(waits: Counter[str]) -> tuple[Kind, str]:
    if waits[OUT_OF_TIME]:
        return "out of time", "out of time"
    if waits[DISTURBED]:
        return "not run yet", DISTURBED
    return ("not run yet", "not run yet") if waits[NOT_RUN] else (NEVER, NEVER)


def _mean(known: Sequence[Between]) -> Between | None:
    if not known:
        return None
    return Between(
        sum(one.low for one in known) / len(known), sum(one.high for one in known) / len(known)
    )


def _ours(claim: Claim, cases: Sequence[tuple[Rule, Judged]]) -> str:
    """The range of what is known exactly, and what fails beyond it; or else the first of what is
    known in part."""
    if claim.holds == "once" and (held := [case for case in cases if case[1].holds]):
        cases = held
    known = [(rule, one.measured, one.holds) for rule, one in cases if one.measured is not None]
    exact = [(rule, one.low) for rule, one, _ in known if one.low == one.high]
    part = [(rule, one) for rule, one, holds in known if one.low < one.high and holds is not None]
    if not exact:
        some = part or [(rule, one) for rule, one, _ in known]
        return _shown(*some[0]) if some else "-"
    (first, low), (last, high) = (pick(exact, key=lambda case: case[1]) for pick in (min, max))
    lowest, highest = first.shown(low), last.shown(high)
    text = lowest if lowest == highest else f"{lowest} to {highest}"
    beyond = [(rule, one) for rule, one in part if one.low > high]
    return f"{text}, {_shown(*beyond[0])}" if beyond else text


def _shown(rule: Rule, number: Between) -> str:
    if number.low == number.high:
        return rule.shown(number.low)
    if number.high < inf:
        return f"<= {rule.shown(number.high)}"
    return f">= {rule.shown(number.low)}" if number.low > 0 else "-"
