"""Bounds along paths, and over the operators that certainly share a device."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.kernels.graphs.heads import longest_path, unit_seconds
from placewire.optimizer.problem import Problem


def path_bound(relaxation: Relaxation) -> Bound:
    """Head, work and tail of the operator with the longest."""
    if relaxation.path_seconds > _computation_seconds(relaxation) * (1 + 1e-9):
        reason = (
            "critical path, where what is fed by several operators waits for their transfers or "
            "for one device to run them in turn"
        )
    else:
        reason = "critical path, each operator at its fastest"
    return Bound(relaxation.path_seconds, reason)


def _computation_seconds(relaxation: Relaxation) -> float:
    return float(longest_path(relaxation.order, relaxation.work, *relaxation.edges_by_target[:2]))


def unit_bound(problem: Problem, relaxation: Relaxation) -> Bound:
    """Operators of one unit run on one device, one after the other: the preemptive optimum of that
    machine with their heads and tails; and, for unlike devices, the unit's load on its best."""
    head, tail = relaxation.heads_and_tails
    seconds = one_machine_seconds(relaxation)
    order = np.argsort(relaxation.unit, kind="stable")
    first = np.searchsorted(relaxation.unit[order], np.arange(relaxation.units))
    load = np.add.reduceat(problem.seconds[order], first, axis=0).min(axis=1)
    around = np.minimum.reduceat(head[order], first) + np.minimum.reduceat(tail[order], first)
    best = max(float(seconds.max(initial=0.0)), float((load + around).max(initial=0.0)))
    return Bound(best, "one co-location group, with what must come before and after it")


def one_machine_seconds(relaxation: Relaxation) -> FloatArray:
    """float64[U]: Jackson's preemptive bound of each unit alone on a device."""
    head, tail = relaxation.heads_and_tails
    return unit_seconds(head, relaxation.work, tail, *relaxation.members_by_head)
