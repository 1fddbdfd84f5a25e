"""What searches that reassign one operator at a time need: costs, moves and random placements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import unit_able, unit_of_operator, unit_rows
from placewire.optimizer.kernels.tables import Tables
from placewire.optimizer.problem import InfeasibleError, Problem

# (problem, device int64[n], the problem's tables) -> priority float64[n]
Scheduler = Callable[[Problem, IntArray, Tables], FloatArray]


class Reassignment:
    """A unit is one co-location group, or one operator outside any; a placement is device int64[n].

    The cost of a placement is its simulated step under `scheduler`, where rates follow the traffic,
    plus a charge where it exceeds a memory, so that a search may cross such placements.
    """

    def __init__(self, problem: Problem, scheduler: Scheduler) -> None:
        self.problem, self.scheduler = problem, scheduler
        self.costing = Costing(problem)
        unit = unit_of_operator(problem)
        start, operators = unit_rows(unit)
        self.members = np.split(operators, start[1:-1]) if len(operators) else []
        able = unit_able(problem, unit)
        self.able = [np.flatnonzero(row) for row in able]
        if len(unit) and not able.any(axis=1).all():
            raise InfeasibleError("a co-location group can run on no device")
        # The units that more than one device can run.
        self.movable = np.array([u for u, row in enumerate(self.able) if len(row) > 1], dtype=int)

    def cost(self, device: IntArray) -> Found:
        priority = self.scheduler(self.problem, device, self.costing.tables)
        return self.costing.cost(Solution(device, priority, None))

    def moved(self, device: IntArray, unit: int, to: int) -> IntArray:
        """A copy of the placement, with the unit on device `to`."""
        elsewhere = device.copy()
        elsewhere[self.members[unit]] = to
        return elsewhere

    def random(self, generator: np.random.Generator) -> IntArray:
        """Every unit on a device that can run it, drawn uniformly."""
        device = np.empty(self.problem.graph.operator_count, dtype=np.int64)
        for members, able in zip(self.members, self.able, strict=True):
            device[members] = generator.choice(able)
        return device

    def proposal(self, device: IntArray, generator: np.random.Generator) -> IntArray:
        """One random unit on another random device that can run it. The move back is as likely."""
        unit = int(generator.choice(self.movable))
        here, able = device[self.members[unit][0]], self.able[unit]
        return self.moved(device, unit, int(generator.choice(able[able != here])))
