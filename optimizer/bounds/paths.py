"""Bounds along paths, and for the operators of one unit, which run one after the other."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.kernels.graphs.heads import longest_path, unit_seconds
from placewire.optimizer.problem import Problem


def path_bound(relaxation: Relaxation) -> Bound:
    """The longest head, work and tail of any operator."""
    computation = longest_path(relaxation.order, relaxation.work, *relaxation.edges_by_target[:2])
    if relaxation.path_seconds > float(computation) * (1 + 1e-9):
        reason = (
            "critical path, where an operator fed by several others waits for their transfers or "
            "for one device to run them in turn"
        )
    else:
        reason = "critical path, each operator at its fastest"
    return Bound(relaxation.path_seconds, reason)


def unit_bound(problem: Problem, relaxation: Relaxation) -> Bound:
    """The operators of a unit run one after the other on one device. The bound is the preemptive
    optimum of that machine with their heads and tails, or, for unlike devices, the unit's load on
    its best one."""
    head, tail = relaxation.heads_and_tails
    seconds = one_machine_seconds(relaxation)
    order = np.argsort(relaxation.unit, kind="stable")
    first = np.searchsorted(relaxation.unit[order], np.arange(relaxation.units))
    load = np.add.reduceat(problem.seconds[order], first, axis=0).min(axis=1)
    around = np.minimum.reduceat(head[order], first) + np.minimum.reduceat(tail[order], first)
    best = max(float(seconds.max(initial=0.0)), float((load + around).max(initial=0.0)))
    return Bound(best, "one co-location group, with what must come before and after it")


def one_machine_seconds(relaxation: Relaxation) -> FloatArray:
    """float64[U]: Jackson's preemptive bound for each unit alone on a device."""
    head, tail = relaxation.heads_and_tails
    return unit_seconds(head, relaxation.work, tail, *relaxation.members_by_head)
