"""Engine `getf`: generalized earliest time first.

Su, Ren, Vardi, Wierman: "Communication-aware scheduling of precedence-constrained tasks on related
machines" (arXiv 2004.14639, 2020), GETF with its group assignment: devices are put into groups of
about equal speed; a linear program without transfers assigns each operator to a group (the rule of
Chudak and Shmoys); then earliest time first places each operator on a device of its group.

Chosen where the paper leaves it open: a device's speed is the time that all operators take on the
average device over the time that they take on this one, so that devices may differ in more than
speed; the speeds of a group differ by less than a factor of log2 m / log2 log2 m, or of 2 where
that is larger; the operators of a co-location group go to one group of devices, by the share of
their time that the program gives to each; a group that cannot run them has none of the speed that
decides. The paper does not consider memory; here a device takes nothing that it has no room for.
"""

from __future__ import annotations

import math

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.device_capacity import within_memory
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import mean_seconds, unit_able, unit_of_operator
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.earliest_time_first import EarliestTimeFirst
from placewire.optimizer.published.engines.shared.kinds import list_engine
from placewire.optimizer.published.engines.shared.linear_program import least
from placewire.optimizer.published.formulations.program import RowWriter


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group finds no device with room, and OutOfTimeError."""
    until = deadline("getf", settings)
    may_go = assigned_devices(problem, until)
    return within_memory(
        problem,
        "getf",
        lambda capacities: EarliestTimeFirst(problem, capacities, until, groups=may_go).run(),
    )


def assigned_devices(problem: Problem, until: Deadline) -> list[list[bool]]:
    """bool rows [n][D]: the devices of the group that each operator is assigned to."""
    speed = device_speeds(problem)
    group = speed_groups(speed)
    unit = unit_of_operator(problem)
    able = unit_able(problem, unit)
    groups = int(group.max()) + 1
    total = np.bincount(group[group >= 0], speed[group >= 0], groups)
    runs = np.stack([able[:, group == k].any(axis=1) for k in range(groups)], axis=1)
    if groups == 1:
        chosen = np.zeros(len(able), dtype=np.int64)
    else:
        share = _shares(problem, unit, group, groups, until)
        chosen = _fastest_of_upper_half(share, np.where(runs, total[None, :], -np.inf))
    usable = group[None, :] == chosen[:, None]
    # The discarded, slowest devices take only what no other device can run.
    usable |= ~(usable & able).any(axis=1, keepdims=True)
    found: list[list[bool]] = usable[unit].tolist()
    return found


def device_speeds(problem: Problem) -> FloatArray:
    """float64[D]: measured on the operators that every device can run; all 1 without any."""
    common = np.isfinite(problem.seconds).all(axis=1)
    took = problem.seconds[common].sum(axis=0)
    if not (took > 0).all():
        return np.ones(problem.seconds.shape[1])
    speed: FloatArray = took.mean() / took
    return speed


def speed_groups(speed: FloatArray) -> IntArray:
    """int64[D]: 0 is the slowest group; -1 for a device that is more than D times slower than the
    fastest, which the paper discards."""
    m = len(speed)
    width = max(2.0, math.log2(m) / math.log2(math.log2(m))) if m > 4 else 2.0
    kept = speed * m >= speed.max()
    power = np.log(speed / speed[kept].min()) / math.log(width)
    power = np.where(kept, np.floor(power + 1e-9), -1)
    _, rank = np.unique(power[kept], return_inverse=True)
    group = np.full(m, -1, dtype=np.int64)
    group[kept] = rank
    return group


def _shares(
    problem: Problem, unit: IntArray, group: IntArray, groups: int, until: Deadline
) -> FloatArray:
    """float64[units, groups]: the share of a unit's time that the program gives to each group."""
    x = _relaxed(problem, group >= 0, until)
    weight = mean_seconds(problem) + 1e-12
    share = np.zeros((int(unit.max(initial=-1)) + 1, groups))
    for k in range(groups):
        np.add.at(share[:, k], unit, weight * x[:, group == k].sum(axis=1))
    share /= share.sum(axis=1, keepdims=True)
    return share


def _relaxed(problem: Problem, kept: np.ndarray, until: Deadline) -> FloatArray:
    """x float64[n, D]: the fraction of each operator on each device.

    Minimises T subject to: sum_d x = 1; an operator ends at least its own time after 0 and after
    its parents; no device works longer than T; nothing ends after T. The unit of time is the sum of
    all operators' mean seconds.
    """
    graph, (n, devices) = problem.graph, problem.seconds.shape
    able = np.isfinite(problem.seconds)
    able &= kept[None, :] | ~(able & kept[None, :]).any(axis=1, keepdims=True)
    unit = max(float(mean_seconds(problem).sum()), 1e-300)
    seconds = np.where(able, problem.seconds, 0.0) / unit
    x = np.arange(n * devices).reshape(n, devices)
    end, step = n * devices + np.arange(n), n * devices + n
    rows = RowWriter()
    rows.add(x, 1.0, 1.0, equal=True)
    rows.add(np.column_stack([end, x]), np.column_stack([-np.ones(n), seconds]), 0.0)
    source, target, _ = graph.edges
    if len(source):
        ones = np.ones(len(source))
        after = np.column_stack([end[source], end[target], x[target]])
        rows.add(after, np.column_stack([ones, -ones, seconds[target]]), 0.0)
    for d in range(devices):
        busy = np.append(x[:, d], step)[None, :]
        rows.add(busy, np.append(seconds[:, d], -1.0)[None, :], 0.0)
    rows.add(np.stack([end, np.full(n, step)], axis=1), [1.0, -1.0], 0.0)
    objective = np.zeros(step + 1)
    objective[step] = 1.0
    high = np.concatenate([able.ravel().astype(float), np.full(n + 1, np.inf)])
    return least(objective, rows, high, until)[: n * devices].reshape(n, devices)


def _fastest_of_upper_half(share: FloatArray, total: FloatArray) -> IntArray:
    """int64[units]: the group of the largest total speed float64[units, groups] among the fastest
    groups that together have at least half of the unit's share float64[units, groups]."""
    from_here_on = np.cumsum(share[:, ::-1], axis=1)[:, ::-1]
    least_group = (from_here_on >= 0.5 - 1e-9).sum(axis=1) - 1
    allowed = np.arange(share.shape[1])[None, :] >= least_group[:, None]
    chosen: IntArray = np.where(allowed, total, -np.inf).argmax(axis=1)
    return chosen


ENGINE = list_engine(
    "earliest time first within groups of devices", solve, paper="Su et al., GETF (2020)",
    section="GETF; group assignment", unlike="grouped by speed",
)  # fmt: skip
