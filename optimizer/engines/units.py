"""Operators that must share a device move as one unit."""

from __future__ import annotations

import numpy as np

from optimizer.cluster import even_rates, widest_rates
from optimizer.graph import FloatArray, IntArray
from optimizer.problem import Problem
from optimizer.sharing import paths


def unit_of_operator(problem: Problem) -> IntArray:
    """int64[n]: units numbered by their first operator in the recorded topological sort."""
    key = problem.graph.colocation
    unit = np.full(len(key), -1, dtype=np.int64)
    by_key: dict[int, int] = {}
    count = 0
    for i in problem.graph.topological_order.tolist():
        known = by_key.get(int(key[i])) if key[i] >= 0 else None
        if known is None:
            known = count
            count += 1
            if key[i] >= 0:
                by_key[int(key[i])] = known
        unit[i] = known
    return unit


def members_of_units(unit: IntArray) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(int(unit.max(initial=-1)) + 1)]
    for i, u in enumerate(unit.tolist()):
        members[u].append(i)
    return members


def upward_rank(problem: Problem, transfer_seconds: FloatArray) -> FloatArray:
    """float64[n]: mean seconds plus the longest path to the end, each tensor float64[m] charged.

    Thesis (4.1); HEFT's upward rank.
    """
    graph = problem.graph
    finite = np.isfinite(problem.seconds)
    mean = np.where(finite, problem.seconds, 0.0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
    rank = np.zeros(graph.operator_count)
    for i in graph.topological_order[::-1].tolist():
        tail = 0.0
        for e in graph.output_tensors(i).tolist():
            for c in graph.tensor_consumers(e).tolist():
                tail = max(tail, float(transfer_seconds[e]) + float(rank[c]))
        rank[i] = mean[i] + tail
    return rank


def typical_transfer_seconds(problem: Problem) -> FloatArray:
    """float64[m]: p0 + bytes / b at the mean rate that pairs of servers can count on, or, where
    none are joined by rails, pairs of devices; 0 where nothing is sent."""
    cluster, nics = problem.cluster, problem.usable_nic_rates
    fixed = problem.sharing in ("strict", "even")
    totals = (even_rates(nics) if fixed else widest_rates(nics)).sum(axis=2)
    setup, rate = np.array([cluster.setup_latency_seconds]), totals[totals > 0]
    if not len(rate) or cluster.links or problem.model == "msr":
        setup, rate = paths(problem)
        apart = ~np.eye(len(rate), dtype=bool) & (rate > 0)
        setup, rate = setup[apart], rate[apart]
    size = problem.graph.tensor_bytes
    if not len(rate):
        return np.zeros(len(size))
    seconds: FloatArray = np.where(size > 0, setup.mean() + size * 8.0 / rate.mean(), 0.0)
    return seconds
