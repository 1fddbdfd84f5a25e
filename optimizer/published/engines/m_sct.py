"""Engine `m-sct`: small communication times within the memories, by favourite children.

Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie, Gupta: "Baechi: fast device placement of machine
learning graphs" (SoCC 2020), m-SCT, after Hanen and Munier: "An approximation algorithm for
scheduling dependent tasks on m processors with small communication delays" (1995). A linear program
with as many devices as operators finds for each operator its favourite child: the child that should
follow it on its device without a transfer. The operators are then placed by earliest time first,
where a device waits for the favourite child of the operator that it ran last, and meanwhile takes
only operators that are urgent.

Chosen where the papers leave it open: an edge with x below 1/2 marks a favourite child (Hanen and
Munier), so that no parent has two and no two parents share one; an edge without a transfer marks
none; seconds are means over unlike devices; a device stops waiting once the child is on another
device or has no room here.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.device_capacity import DeviceCapacities, within_memory
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import mean_seconds, typical_transfer_seconds
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.earliest_time_first import EarliestTimeFirst
from placewire.optimizer.published.engines.shared.kinds import list_engine
from placewire.optimizer.published.engines.shared.linear_program import least
from placewire.optimizer.published.formulations.program import RowWriter

# Two that share a parent or a child may each be at 1/2, from which a solver deviates a little.
_FAVOURITE_BELOW = 0.5 - 1e-6


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group finds no device with room, and OutOfTimeError."""
    until = deadline("m-sct", settings)
    favourite = favourite_children(problem, until)

    def attempt(capacities: DeviceCapacities) -> Solution | None:
        return EarliestTimeFirst(problem, capacities, until, favourite=favourite).run()

    return within_memory(problem, "m-sct", attempt)


def favourite_children(problem: Problem, until: Deadline) -> list[int]:
    """The favourite child of each operator, -1 for none; no two operators have the same."""
    found = np.full(problem.graph.operator_count, -1)
    parent, child, transfer = sending_pairs(problem)
    if len(parent):
        favourite = _relaxed(problem, parent, child, transfer, until) < _FAVOURITE_BELOW
        found[parent[favourite]] = child[favourite]
    children: list[int] = found.tolist()
    return children


def sending_pairs(problem: Problem) -> tuple[IntArray, IntArray, FloatArray]:
    """(parent, child, seconds of the largest transfer between them), for pairs with a transfer."""
    source, target, tensor = problem.graph.edges
    seconds = typical_transfer_seconds(problem)[tensor]
    sends = seconds > 0
    pairs, index = np.unique(
        np.stack([source[sends], target[sends]], axis=1), axis=0, return_inverse=True
    )
    longest = np.zeros(len(pairs))
    np.maximum.at(longest, index.ravel(), seconds[sends])
    return pairs[:, 0], pairs[:, 1], longest


def _relaxed(
    problem: Problem, parent: IntArray, child: IntArray, transfer: FloatArray, until: Deadline
) -> FloatArray:
    """x float64[pairs]: 0 where the child follows without a transfer, 1 where it need not.

    The columns are x, the start of each operator, and the step. The unit of time is the sum of all
    operators' and transfers' seconds.
    """
    n, pairs = problem.graph.operator_count, len(parent)
    unit = max(float(mean_seconds(problem).sum() + transfer.sum()), 1e-300)
    own, transfer = mean_seconds(problem) / unit, transfer / unit
    start, step = pairs + np.arange(n), pairs + n
    rows = RowWriter()
    source, target, _ = problem.graph.edges
    rows.add(np.stack([start[source], start[target]], axis=1), [1.0, -1.0], -own[source])
    waits = np.stack([start[parent], np.arange(pairs), start[child]], axis=1)
    ones = np.ones(pairs)
    rows.add(waits, np.stack([ones, transfer, -ones], axis=1), -own[parent])
    rows.add(np.stack([start, np.full(n, step)], axis=1), [1.0, -1.0], -own)
    for ends in (parent, child):
        for row in _together(ends):
            rows.add(row[None, :], -1.0, 1.0 - len(row))
    objective = np.zeros(pairs + n + 1)
    objective[step] = 1.0
    high = np.concatenate([ones, np.full(n + 1, np.inf)])
    return least(objective, rows, high, until)[:pairs]


def _together(ends: IntArray) -> list[IntArray]:
    """The groups of two or more pairs that have the same operator at this end."""
    order = np.argsort(ends, kind="stable")
    cuts = np.flatnonzero(np.diff(ends[order])) + 1
    return [group for group in np.split(order, cuts) if len(group) > 1]


ENGINE = list_engine(
    "earliest time first with favourite children", solve, paper="Jeon et al., Baechi (SoCC 2020)",
    section="m-SCT", unlike="mean times in its program",
)  # fmt: skip
