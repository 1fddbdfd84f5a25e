"""Lower bounds on the step time over every placement, order and admissible rates.

They hold for the graph as given, under every model and sharing here: none of them charges for
communication, so the fastest network cannot break them. The largest is returned with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.graph import FloatArray, IntArray
from optimizer.problem import InfeasibleError, Problem

# Thresholds per axis of the combined bound; more of them sharpen it little.
_THRESHOLDS = 24
_WEIGHT_ROUNDS = 60


@dataclass(frozen=True)
class Bound:
    seconds: float
    reason: str


def lower_bound(problem: Problem) -> Bound:
    """Raises InfeasibleError where an operator can run on no device of the cluster."""
    seconds = problem.seconds
    if not problem.graph.operator_count:
        return Bound(0.0, "the graph is empty")
    fastest = seconds.min(axis=1)
    if not np.isfinite(fastest).all():
        name = problem.graph.ids[int(np.argmax(~np.isfinite(fastest)))]
        raise InfeasibleError(
            f"operator {name!r} has no time on any device type of the cluster; profile it on one"
        )
    head, tail = _heads_and_tails(problem, fastest)
    found = [
        Bound(float((head + fastest + tail).max()), "critical path, each operator at its fastest"),
        _load(seconds),
        _group(problem, head, tail),
        _load_between(seconds, head, tail),
    ]
    if len(problem.cluster.devices) == 1:
        found.append(Bound(float(seconds[:, 0].sum()), "one device runs everything"))
    best = max(found, key=lambda bound: bound.seconds)
    # Sums taken in another order differ in the last bits; a bound must not exceed for that.
    return Bound(best.seconds * (1 - 1e-12), best.reason)


def _heads_and_tails(problem: Problem, fastest: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Longest path strictly before and strictly after each operator, float64[n] each."""
    source, target, _ = problem.graph.edges
    head, tail = np.zeros(len(fastest)), np.zeros(len(fastest))
    forward = _by_operator(source, target, len(fastest))
    for i in problem.graph.topological_order.tolist():
        for j in forward[i]:
            head[j] = max(head[j], head[i] + fastest[i])
    for i in problem.graph.topological_order[::-1].tolist():
        for j in forward[i]:
            tail[i] = max(tail[i], tail[j] + fastest[j])
    return head, tail


def _by_operator(source: IntArray, target: IntArray, n: int) -> list[list[int]]:
    following: list[list[int]] = [[] for _ in range(n)]
    for i, j in zip(source.tolist(), target.tolist(), strict=True):
        following[i].append(j)
    return following


def _share_of_load(seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(weights float64[D], work float64[n]) with sum(work[any set]) <= its time on any placement.

    For weights w >= 0 summing to 1: step >= sum_d w_d load_d >= sum_i min_d w_d seconds[i, d]. Like
    devices get like weights; unlike ones are weighted by a few rounds that even out their loads.
    """
    devices = seconds.shape[1]
    weights = np.full(devices, 1.0 / devices)
    best, best_value = weights, -1.0
    finite = np.where(np.isfinite(seconds), seconds, np.inf)
    for attempt in range(1 if _all_alike(seconds) else _WEIGHT_ROUNDS):
        weighted = _weighted(finite, weights)
        chosen = weighted.argmin(axis=1)
        value = float(weighted.min(axis=1).sum())
        if value > best_value:
            best, best_value = weights, value
        load = np.bincount(
            chosen, weights=finite[np.arange(len(chosen)), chosen], minlength=devices
        )
        scale = max(float(load.max()), 1e-300)
        weights = weights * np.exp(0.5 / np.sqrt(1 + attempt) * load / scale)
        weights = weights / weights.sum()
    return best, _weighted(finite, best).min(axis=1)


def _weighted(finite: FloatArray, weights: FloatArray) -> FloatArray:
    return np.where(np.isfinite(finite), finite * weights, np.inf)


def _all_alike(seconds: FloatArray) -> bool:
    return bool((seconds == seconds[:, :1]).all())


def _load(seconds: FloatArray) -> Bound:
    _, work = _share_of_load(seconds)
    return Bound(float(work.sum()), "total work over all devices")


def _group(problem: Problem, head: FloatArray, tail: FloatArray) -> Bound:
    """Operators of one co-location group run on one device, one after the other."""
    best = 0.0
    key = problem.graph.colocation
    for k in np.unique(key[key >= 0]):
        members = np.flatnonzero(key == k)
        alone = float(problem.seconds[members].sum(axis=0).min())
        best = max(best, float(head[members].min()) + alone + float(tail[members].min()))
    return Bound(best, "one co-location group, with what must come before and after it")


def _load_between(seconds: FloatArray, head: FloatArray, tail: FloatArray) -> Bound:
    """Operators with head >= a and tail >= b run inside a window of the step less a and b."""
    _, work = _share_of_load(seconds)
    best = 0.0
    levels = np.linspace(0.0, 1.0, _THRESHOLDS)
    for a in np.unique(np.quantile(head, levels, method="nearest")):
        late = head >= a
        for b in np.unique(np.quantile(tail, levels, method="nearest")):
            inside = late & (tail >= b)
            best = max(best, float(a + work[inside].sum() + b) if inside.any() else 0.0)
    return Bound(best, "work over all devices between what must come before and after it")
