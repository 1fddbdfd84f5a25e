"""Tracks which device may still take which operator, while co-location and memory restrict it.

Memory is counted as the papers count it: a static sum, here with activations as if all were held at
once. Where that fits nowhere, weights alone are counted, since activations come and go. A placement
found so may still exceed a memory, above all because of message buffers, which a static sum does
not contain; then the operators are placed again with ever less of each memory.
"""

from __future__ import annotations

from collections.abc import Callable

from placewire.optimizer.engines.costing import memory_may_bind
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import unit_able, unit_of_operator, unit_sums
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.rates.allocator import starting_rates
from placewire.optimizer.simulation.simulate import simulate

_PARTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6)


class DeviceCapacities:
    """The first operator of a unit that is placed decides the device of the whole unit.

    unit [n]; needed [units] bytes; left_bytes [D]; device [n], -1 for operators not placed yet.
    """

    def __init__(
        self, problem: Problem, *, count_activations: bool = True, part: float = 1.0
    ) -> None:
        """part: the part of each memory that may be filled."""
        graph = problem.graph
        unit = unit_of_operator(problem)
        size = graph.weight_bytes + (graph.activation_bytes if count_activations else 0)
        self.unit: list[int] = unit.tolist()
        self.needed: list[float] = unit_sums(unit, size).tolist()
        self.left_bytes: list[float] = (problem.cluster.memory_bytes * part).tolist()
        self.device = [-1] * graph.operator_count
        self._able: list[list[bool]] = unit_able(problem, unit).tolist()
        self._home = [-1] * len(self.needed)

    def home(self, operator: int) -> int:
        """The device of the operator's unit, -1 while it is not placed."""
        return self._home[self.unit[operator]]

    def can_run(self, operator: int, device: int) -> bool:
        """Whether the device has times for every operator of the unit."""
        return self._able[self.unit[operator]][device]

    def takes(self, operator: int, device: int) -> bool:
        """Whether the unit may go to the device; once False it stays so: memory is never freed."""
        unit = self.unit[operator]
        if self._home[unit] >= 0:
            return self._home[unit] == device
        return self._able[unit][device] and self.needed[unit] <= self.left_bytes[device]

    def roomiest(self, operator: int) -> int:
        """For an operator that no device takes: its unit's device, or the one with most memory left
        of those that can run it. Raises InfeasibleError where none can."""
        if self.home(operator) >= 0:
            return self.home(operator)
        able = [d for d in range(len(self.left_bytes)) if self.can_run(operator, d)]
        if not able:
            raise InfeasibleError("an operator's co-location group can run on no device")
        return max(able, key=lambda d: self.left_bytes[d])

    def put(self, operator: int, device: int) -> None:
        unit = self.unit[operator]
        if self._home[unit] < 0:
            self._home[unit] = device
            self.left_bytes[device] -= self.needed[unit]
        self.device[operator] = device


def within_memory(
    problem: Problem, engine: str, attempt: Callable[[DeviceCapacities], Solution | None]
) -> Solution:
    """The first solution of `attempt` that runs within the memories. It is called with activations
    counted, then with weights alone, each time with ever less of the memories; it returns None
    where a unit finds no device.

    Raises InfeasibleError where it always returns None. Where no solution runs within the memories,
    returns the first, which `place` then refuses.
    """
    first = None
    for counts in (True, False):
        for part in _PARTS:
            solution = attempt(DeviceCapacities(problem, count_activations=counts, part=part))
            if solution is None:
                break
            if fits(problem, solution):
                return solution
            first = first or solution
    if first is None:
        raise InfeasibleError(no_capacity(engine))
    return first


def no_capacity(engine: str) -> str:
    return (
        f"{engine} found no device with room for every co-location group: weights, gradients and "
        "optimizer state alone exceed the memories in its order; try engine auto"
    )


def fits(problem: Problem, solution: Solution) -> bool:
    """Whether the simulated peaks are within the memories, under rates that follow the traffic."""
    if not memory_may_bind(problem):
        return True
    rates = starting_rates(problem, solution.device) if problem.decides_rates else None
    timeline = simulate(problem, solution.device, solution.priority, None, rates)
    return bool((timeline.peak_memory_bytes <= problem.cluster.memory_bytes).all())
