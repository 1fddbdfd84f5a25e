"""Which device may still take which operator: co-location and memory, as they fill up.

Memory is counted as the papers count it: a static sum, here with activations as if all were held at
once. Where that fits nowhere, or what was placed so does not run within the memories, weights alone
are counted, since activations come and go.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from optimizer.engines.solution import Solution
from optimizer.engines.units import unit_able, unit_of_operator, unit_sums
from optimizer.problem import InfeasibleError, Problem
from optimizer.sharing import decides_rates
from optimizer.simulate import simulate


class Rooms:
    """A unit is one co-location group, or one operator outside any; its first operator to be placed
    decides for all of it.

    unit [n]; needed bytes [units]; room bytes [D], what is left; device [n], -1 for what is nowhere
    yet.
    """

    def __init__(self, problem: Problem, *, count_activations: bool) -> None:
        graph = problem.graph
        unit = unit_of_operator(problem)
        size = graph.weight_bytes + (graph.activation_bytes if count_activations else 0)
        self.unit: list[int] = unit.tolist()
        self.needed: list[float] = unit_sums(unit, size).tolist()
        self.room: list[float] = problem.cluster.memory_bytes.astype(np.float64).tolist()
        self.device = [-1] * graph.operator_count
        self._able: list[list[bool]] = unit_able(problem, unit).tolist()
        self._home = [-1] * len(self.needed)

    def home(self, operator: int) -> int:
        """Where the operator's unit is, -1 while it is nowhere."""
        return self._home[self.unit[operator]]

    def can_run(self, operator: int, device: int) -> bool:
        """The device has times for all of the operator's unit."""
        return self._able[self.unit[operator]][device]

    def takes(self, operator: int, device: int) -> bool:
        """Once False it stays so: memory is never given back."""
        unit = self.unit[operator]
        if self._home[unit] >= 0:
            return self._home[unit] == device
        return self._able[unit][device] and self.needed[unit] <= self.room[device]

    def roomiest(self, operator: int) -> int:
        """Best effort where no device takes it: the most memory left among those that can run it,
        its unit's own if there is one. Raises InfeasibleError where none can."""
        if self.home(operator) >= 0:
            return self.home(operator)
        able = [d for d in range(len(self.room)) if self.can_run(operator, d)]
        if not able:
            raise InfeasibleError("an operator's co-location group can run on no device")
        return max(able, key=lambda d: self.room[d])

    def put(self, operator: int, device: int) -> None:
        unit = self.unit[operator]
        if self._home[unit] < 0:
            self._home[unit] = device
            self.room[device] -= self.needed[unit]
        self.device[operator] = device


def within_memory(
    problem: Problem, engine: str, attempt: Callable[[Rooms], Solution | None]
) -> Solution:
    """What `attempt` makes of rooms with activations counted if that runs within the memories, else
    of rooms with weights alone; attempt gives None where a unit finds no device.

    Raises InfeasibleError where both give None. What is returned may still exceed a memory, which
    the registry then refuses.
    """
    found = None
    for count_activations in (True, False):
        solution = attempt(Rooms(problem, count_activations=count_activations))
        if solution is None:
            continue
        found = solution
        if fits(problem, solution):
            break
    if found is None:
        raise InfeasibleError(no_room(engine))
    return found


def no_room(engine: str) -> str:
    return (
        f"{engine} found no device with room for every co-location group: weights, gradients and "
        "optimizer state alone exceed the memories in its order; try engine auto"
    )


def fits(problem: Problem, solution: Solution) -> bool:
    """Whether the simulated peaks are within the memories, rates following the traffic."""
    rates = None
    if decides_rates(problem):
        from optimizer.rates import starting_rates

        rates = starting_rates(problem, solution.device)
    timeline = simulate(problem, solution.device, solution.priority, None, rates)
    return bool((timeline.peak_memory_bytes <= problem.cluster.memory_bytes).all())
