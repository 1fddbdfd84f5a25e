"""Measures what a reduction does to a graph."""

from __future__ import annotations

import time
from dataclasses import dataclass

from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison.warm_up import warm_up_reduction
from placewire.optimizer.published.reductions.shared.transfers import communication_to_computing
from placewire.optimizer.published.reductions.thresholds import thesis_thresholds
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.merging import group_count, operator_delay


@dataclass(frozen=True)
class ReductionReport:
    """groups: co-location keys of the reduced graph with two or more operators. critical_path_*:
    the longest path of computing delays, where transfers take no time and the operators of a group
    may run at the same time. total_seconds: the sum of all delays, which no reduction changes.
    ccr_*: communication-to-computing ratio, Celeritas (1). alpha_seconds, beta_seconds: the thesis'
    thresholds of the graph as given. wall_seconds: the time of the reduction alone."""

    name: str
    operators_before: int
    operators_after: int
    groups: int
    critical_path_before_seconds: float
    critical_path_after_seconds: float
    total_seconds: float
    ccr_before: float
    ccr_after: float
    alpha_seconds: float
    beta_seconds: float
    wall_seconds: float


def reduction_report(problem: Problem, name: str) -> ReductionReport:
    """Raises as chain.reduce_by_name does."""
    warm_up_reduction(problem, name)
    start = time.perf_counter()
    small, _, _ = reduce_by_name(problem, name)
    wall = time.perf_counter() - start
    delay = operator_delay(problem)
    thresholds = thesis_thresholds(delay)
    return ReductionReport(
        name=name, operators_before=problem.graph.operator_count,
        operators_after=small.graph.operator_count, groups=group_count(small.graph),
        critical_path_before_seconds=critical_path_seconds(problem),
        critical_path_after_seconds=critical_path_seconds(small), total_seconds=float(delay.sum()),
        ccr_before=communication_to_computing(problem), ccr_after=communication_to_computing(small),
        alpha_seconds=thresholds.alpha_seconds, beta_seconds=thresholds.beta_seconds,
        wall_seconds=wall,
    )  # fmt: skip


def critical_path_seconds(problem: Problem) -> float:
    """The longest path of computing delays (merging.operator_delay)."""
    graph, own = problem.graph, operator_delay(problem).tolist()
    finish = list(own)
    for i in graph.topological_order.tolist():
        for e in graph.output_tensors(i).tolist():
            for j in graph.tensor_consumers(e).tolist():
                finish[j] = max(finish[j], finish[i] + own[j])
    return float(max(finish, default=0.0))
