"""Whether a claim holds, over all models of which it is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, get_args

from benchmarks.reproduction.entry import Claim
from benchmarks.reproduction.findings import Finding
from benchmarks.reproduction.rules import (
    DISTURBED,
    NOT_RUN,
    OUT_OF_TIME,
    UNPLACED,
    Judged,
    Rule,
)
from placewire.optimizer.published.comparison.our_figures import Between

Kind = Literal[
    "holds", "holds so far", "does not hold", "out of time", "not run yet", "cannot be asked here"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_NOT: Kind = "does not hold"
_WAITING: Kind = "not run yet"
NEVER: Kind = "cannot be asked here"
# Why a case cannot be decided yet, and how it is counted.
_WAITS = {OUT_OF_TIME: "out of time", DISTURBED: "disturbed", NOT_RUN: "not run"}
ByModel = Mapping[str, Mapping[str, Finding]]


@dataclass(frozen=True)
class Verdict:
    """ours: what the rules measured, as text. told: the kind and how many cases were for it. why:
    of what cannot be asked. without: the rivals on models that count neither for nor against.
    older: it is of figures of an older state of the sources."""

    kind: Kind
    told: str
    ours: str
    why: str = ""
    without: tuple[str, ...] = ()
    older: bool = False


def verdict_of(claim: Claim, found: ByModel) -> Verdict:
    """found: the figures of each model; those of one that was not run are empty."""
    models = claim.models or tuple(found)
    cases = [
        (model, rule, rule.judged(found.get(model, {}))) for model in models for rule in claim.rules
    ]
    decided = _decided(claim, [(rule, one) for _, rule, one in cases])
    without = (
        f"`{name}` on {model}"
        for model, _, one in cases
        if one.holds is not None
        for name in one.without
    )
    older = decided.kind != _WAITING and any(
        found.get(model, {})[name].older
        for model, rule, _ in cases
        for name in rule.figures
        if name in found.get(model, {})
    )
    return replace(decided, without=tuple(dict.fromkeys(without)), older=older)


def _decided(claim: Claim, cases: Sequence[tuple[Rule, Judged]]) -> Verdict:
    judged = [one for _, one in cases]
    held = [one.holds for one in judged if one.holds is not None]
    open_cases = [one.why for one in judged if one.holds is None]
    waits = Counter(why for why in open_cases if why in _WAITS)
    why = next((why for why in open_cases if why not in _WAITS), "")
    ours = _ours(claim, cases)
    if claim.holds == "on average":
        mean = _mean([one.measured for one in judged if one.measured is not None])
        holds = None if mean is None or waits[NOT_RUN] else claim.rules[0].decided(mean)
        if holds is None:
            return Verdict(*_waiting(waits), ours, why)
        assert mean is not None
        kind: Kind = "holds" if holds else _NOT
        counted = sum(one.measured is not None for one in judged)
        shown = f"{_shown(claim.rules[0], mean)} on average"
        return Verdict(kind, f"{kind} (mean of {counted} of {len(judged)})", shown)
    holds = any(held) if claim.holds == "once" else bool(held) and all(held)
    fails = bool(held) and not holds and (claim.holds == "always" or not waits)
    if not holds and not fails:
        return Verdict(*_waiting(waits), ours, why)
    parts = [f"{sum(held)} of {len(held)}"]
    parts += [f"{count} {_WAITS[name]}" for name, count in waits.items()]
    if never := len(open_cases) - waits.total():
        parts.append(f"{never} cannot be asked")
    kind = "holds" if holds else _NOT
    if holds and claim.holds == "always" and waits:
        kind = "holds so far"
    return Verdict(kind, f"{kind} ({'; '.join(parts)})", ours, why)


def _waiting(waits: Counter[str]) -> tuple[Kind, str]:
    if waits[OUT_OF_TIME]:
        return "out of time", "out of time"
    if waits[DISTURBED]:
        return _WAITING, DISTURBED
    return (_WAITING, _WAITING) if waits[NOT_RUN] else (NEVER, NEVER)


def _mean(known: Sequence[Between]) -> Between | None:
    if not known:
        return None
    return Between(
        sum(one.low for one in known) / len(known), sum(one.high for one in known) / len(known)
    )


def _ours(claim: Claim, cases: Sequence[tuple[Rule, Judged]]) -> str:
    """The range of what is known exactly, and what is known to be beyond it; or else what is known
    in part of all."""
    if claim.holds == "once" and (held := [case for case in cases if case[1].holds]):
        cases = held
    known = [(rule, one.measured, one.holds) for rule, one in cases if one.measured is not None]
    exact = [(rule, one.low) for rule, one, _ in known if one.low == one.high]
    part = [(rule, one) for rule, one, holds in known if one.low < one.high and holds is not None]
    if not exact:
        if part:
            return _shown(*_weakest(part))
        if any(one.holds is not None and one.why == UNPLACED for _, one in cases):
            return UNPLACED
        undecided = [(rule, one) for rule, one, _ in known if _shown(rule, one) != "-"]
        return _shown(*_weakest(undecided)) if undecided else "-"
    (first, low), (last, high) = (pick(exact, key=lambda case: case[1]) for pick in (min, max))
    lowest, highest = first.shown(low), last.shown(high)
    text = lowest if lowest == highest else f"{lowest} to {highest}"
    beyond = [(rule, one) for rule, one in part if one.low > high]
    return f"{text}, {_shown(*_weakest(beyond))}" if beyond else text


def _weakest(part: Sequence[tuple[Rule, Between]]) -> tuple[Rule, Between]:
    """The limit that all keep: the least lower one of those that have no upper one, or else the
    largest upper one."""
    if lower := [(rule, number) for rule, number in part if number.high == inf]:
        return min(lower, key=lambda case: case[1].low)
    return max(part, key=lambda case: case[1].high)


def _shown(rule: Rule, number: Between) -> str:
    if number.low == number.high:
        return rule.shown(number.low)
    if number.high < inf:
        return f"<= {rule.shown(number.high)}"
    return f">= {rule.shown(number.low)}" if number.low not in (0.0, -inf) else "-"
