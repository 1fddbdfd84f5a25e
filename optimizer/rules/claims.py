"""The step, the memories, the bound, the gap and the single device: what makes it look good."""

from __future__ import annotations

import math
from collections.abc import Iterator

from optimizer.bounds import lower_bound
from optimizer.problem import InfeasibleError, Problem
from optimizer.recompute.claims import least_bound, recompute_best_single
from optimizer.recompute.facts import Facts
from optimizer.recompute.memory import recompute_memory
from optimizer.recompute.times import recompute_times
from optimizer.rules.violation import RELATIVE_TOLERANCE, Violation, within


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
    if not abs(step - placement.step_seconds) <= RELATIVE_TOLERANCE * max(step, 1e-12):
        yield Violation(f"says {placement.step_seconds!r}, recomputed {step!r}", "step_seconds")
    cluster = placement.cluster
    memory = dict(zip(cluster.device_names, cluster.memory_bytes.tolist(), strict=True))
    for device, peak in recompute_memory(facts, times).items():
        if peak > memory[device]:
            yield Violation(f"needs {peak} bytes at its peak, has {memory[device]}", device)


# What the reason of a bound above the quick one must name.
STRONGER_PROOF = "CP-SAT"


def bound_violations(facts: Facts) -> Iterator[Violation]:
    """A bound above the quick one is taken on its word where it names the stronger proof."""
    placement = facts.placement
    step, bound = placement.step_seconds, placement.bound_seconds
    try:
        quick = lower_bound(_problem(facts))
    except InfeasibleError as error:
        yield Violation(str(error), "cluster")
        return
    least = least_bound(facts)
    if not within(bound, step):
        yield Violation(f"{bound!r} is above the step of {step!r}", "bound_seconds")
    elif not within(least, bound):
        yield Violation(
            f"says {bound!r}, the longest path or the load alone give {least!r}", "bound_seconds"
        )
    elif not within(quick.seconds, bound):
        yield Violation(
            f"says {bound!r}, {quick.seconds!r} is quickly proven: {quick.reason}", "bound_seconds"
        )
    elif not within(bound, quick.seconds) and STRONGER_PROOF not in placement.bound_reason:
        yield Violation(
            f"says {bound!r}, only {quick.seconds!r} can be proven without {STRONGER_PROOF}, "
            "which its bound_reason does not name",
            "bound_seconds",
        )
    gap = max(0.0, 1.0 - bound / step) if step > 0 else 0.0
    if not abs(placement.gap - gap) <= RELATIVE_TOLERANCE:
        yield Violation(f"says {placement.gap!r}, step and bound give {gap!r}", "gap")


def single_device_violations(facts: Facts) -> Iterator[Violation]:
    said, alone = facts.placement.single_device_seconds, recompute_best_single(facts)
    if (said is None) != (alone is None) or (
        said is not None and alone is not None and not math.isclose(said, alone, rel_tol=1e-6)
    ):
        yield Violation(
            f"says {_seconds_or_none(said)}, recomputed {_seconds_or_none(alone)}",
            "single_device_seconds",
        )


def _problem(facts: Facts) -> Problem:
    placement = facts.placement
    return Problem(
        facts.graph,
        placement.cluster,
        placement.sharing,
        placement.model,
        placement.backend,
        placement.entitled,
    )


def _seconds_or_none(seconds: float | None) -> str:
    return "that no device can hold everything" if seconds is None else repr(seconds)
