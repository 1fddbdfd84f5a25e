"""Operators that must share a device move as one unit."""

from __future__ import annotations

import numpy as np

from optimizer.graph import FloatArray, IntArray
from optimizer.problem import Problem


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
    """float64[m]: p0 + bytes / b at the mean rate that pairs of servers can count on; 0 where
    nothing is sent."""
    from optimizer.rates import even_rates, widest_rates

    cluster = problem.cluster
    table = widest_rates(cluster) if problem.sharing == "unshaped" else even_rates(cluster)
    totals = table.sum(axis=2)
    totals = totals[totals > 0]
    rate = float(totals.mean()) if len(totals) else cluster.intra_server_bits_per_second
    size = problem.graph.tensor_bytes
    seconds: FloatArray = np.where(size > 0, cluster.setup_latency_seconds + size * 8.0 / rate, 0.0)
    return seconds
