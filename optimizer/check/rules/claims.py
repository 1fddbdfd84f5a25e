"""Rules on the figures that a placement states: step, bound, gap, single device; and on memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from placewire.optimizer.bounds import Bound, lower_bound, strong_bound
from placewire.optimizer.check.recompute.claims import least_bound, recompute_best_single
from placewire.optimizer.check.recompute.facts import Facts, parts
from placewire.optimizer.check.recompute.memory import recompute_memory
from placewire.optimizer.check.recompute.sharings import rules_of
from placewire.optimizer.check.recompute.times import recompute_times
from placewire.optimizer.check.rules.violation import RELATIVE_TOLERANCE, Violation, within
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import InfeasibleError, Problem

_INSTANT_SECONDS = 1e-9


def time_and_memory_violations(facts: Facts) -> Iterator[Violation]:
    placement = facts.placement
    times = recompute_times(facts)
    if times is None:
        yield Violation("the devices' orders wait for each other for ever (deadlock)", "order")
        return
    step = times.step_seconds
    if not math.isfinite(step):
        yield Violation("a message never arrives, or an operator never ends", "step_seconds")
        return
    tolerance = RELATIVE_TOLERANCE * max(step, 1e-12) + _instants_seconds(facts)
    if not abs(step - placement.step_seconds) <= tolerance:
        yield Violation(f"says {placement.step_seconds!r}, recomputed {step!r}", "step_seconds")
    cluster = placement.cluster
    memory = dict(zip(cluster.device_names, cluster.memory_bytes.tolist(), strict=True))
    for device, peak in recompute_memory(facts, times).items():
        if peak > memory[device]:
            yield Violation(f"needs {peak} bytes at its peak, has {memory[device]}", device)


def _instants_seconds(facts: Facts) -> float:
    """How far two right computations of a step may lie apart beside rounding.

    Where parts of messages share the NICs, the simulator and the recomputation each end a part
    together with an event less than _INSTANT_SECONDS before its end. Rounding decides with which
    event, so that each part may move everything behind it by that time.
    """
    if facts.placement.model != "contended" or rules_of(facts.placement).shares is None:
        return 0.0
    return _INSTANT_SECONDS * sum(len(parts(message)) for message in facts.placement.messages)


# The reason of a bound whose proof takes a search (`strong_bound`) begins with one of these.
_SEARCHED_PROOFS = ("exact search", "contradiction", "cases")
# Such a search counts time in ticks, and stops within this part of what it could prove.
_PROOF_TOLERANCE = 2e-4


def bound_violations(facts: Facts, prove_seconds: float | None) -> Iterator[Violation]:
    """A bound above the quick one is accepted where its reason names a proof by search, or, with
    prove_seconds, where such a search proves it again in this time. One below is no less true: a
    version that knew fewer proofs may have written it."""
    placement = facts.placement
    step, bound = placement.step_seconds, placement.bound_seconds
    try:
        problem = Problem(
            facts.graph, placement.cluster, placement.sharing, placement.model, placement.backend,
            placement.floor,
        )  # fmt: skip
        quick = lower_bound(problem)
    except InfeasibleError as error:
        yield Violation(str(error), "cluster")
        return
    if (what := next(_bound_mistakes(facts, quick), None)) is not None:
        yield Violation(f"says {bound!r}, {what}", "bound_seconds")
    elif prove_seconds is not None and not within(bound, quick.seconds):
        yield from _proof_violations(problem, placement, prove_seconds)
    gap = max(0.0, 1.0 - bound / step) if step > 0 else 0.0
    if not abs(placement.gap - gap) <= RELATIVE_TOLERANCE:
        yield Violation(f"says {placement.gap!r}, step and bound give {gap!r}", "gap")


def _bound_mistakes(facts: Facts, quick: Bound) -> Iterator[str]:
    placement, least = facts.placement, least_bound(facts)
    bound, step = placement.bound_seconds, placement.step_seconds
    if not within(bound, step):
        yield f"which is above the step of {step!r}"
    if not within(least, bound):
        yield f"the longest path or the load alone give {least!r}"
    if not within(bound, quick.seconds) and not placement.bound_reason.startswith(_SEARCHED_PROOFS):
        yield (
            f"only {quick.seconds!r} can be proven without a search "
            f"({' or '.join(_SEARCHED_PROOFS)}), which its bound_reason does not name"
        )


def _proof_violations(
    problem: Problem, placement: Placement, prove_seconds: float
) -> Iterator[Violation]:
    proven = strong_bound(problem, placement.step_seconds, prove_seconds)
    if not placement.bound_seconds <= proven.seconds * (1 + _PROOF_TOLERANCE):
        yield Violation(
            f"says {placement.bound_seconds!r}, only {proven.seconds!r} was proven in "
            f"{prove_seconds:g} s ({proven.reason}); allow more time if it took more",
            "bound_seconds",
        )


def single_device_violations(facts: Facts) -> Iterator[Violation]:
    alone = recompute_best_single(facts.graph, facts.given, facts.placement)
    if (what := single_device_mistake(facts.placement.single_device_seconds, alone)) is not None:
        yield Violation(what, "single_device_seconds")


def single_device_mistake(said: float | None, recomputed: float | None) -> str | None:
    """What is wrong with a step on one device; None of these means that none can hold it."""
    if said is None or recomputed is None:
        holds = said is recomputed
    else:
        holds = math.isclose(said, recomputed, rel_tol=1e-6)
    if holds:
        return None
    return f"says {_seconds_or_none(said)}, recomputed {_seconds_or_none(recomputed)}"


def _seconds_or_none(seconds: float | None) -> str:
    return "that no device can hold everything" if seconds is None else repr(seconds)
