"""Engine `single`: everything on the fastest device that has memory for all operators."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.simulation.simulate import recorded_priority, simulate


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError with the memory that the roomiest device would need."""
    found = best_single(problem)
    if found is None:
        raise InfeasibleError(_why_none(problem))
    return found[0]


def best_single(problem: Problem) -> tuple[Solution, float] | None:
    """(solution, step seconds); None where no device has memory, or times, for all operators."""
    memory = problem.cluster.memory_bytes
    fitting = [(step, d) for d, step, peak in _candidates(problem) if peak <= memory[d]]
    if not fitting:
        return None
    step, device = min(fitting)
    return _on(problem, device), step


def _on(problem: Problem, device: int) -> Solution:
    servers, rails = problem.cluster.nic_rates.shape
    rates = np.zeros((servers, servers, rails)) if problem.decides_rates else None
    where = np.full(problem.graph.operator_count, device, dtype=np.int64)
    return Solution(where, recorded_priority(problem), rates)


def _candidates(problem: Problem) -> list[tuple[int, float, int]]:
    """(device, step seconds, peak bytes) of each device that can run every operator. Step and peak
    are the same on devices of one type."""
    found: list[tuple[int, float, int]] = []
    by_type: dict[str, tuple[float, int]] = {}
    for d, device in enumerate(problem.cluster.devices):
        if not np.isfinite(problem.seconds[:, d]).all():
            continue
        if device.type not in by_type:
            solution = _on(problem, d)
            timeline = simulate(problem, solution.device, solution.priority, None, solution.rates)
            by_type[device.type] = timeline.step_seconds, int(timeline.peak_memory_bytes[d])
        found.append((d, *by_type[device.type]))
    return found


def _why_none(problem: Problem) -> str:
    candidates = _candidates(problem)
    if not candidates:
        return "no device type of the cluster has times for every operator of the graph"
    device, _, peak = max(candidates, key=lambda c: int(problem.cluster.memory_bytes[c[0]]) - c[2])
    name, memory = problem.cluster.device_names[device], problem.cluster.memory_bytes[device]
    return (
        f"one device needs {peak / 2**20:.1f} MiB for the whole graph; the roomiest, {name}, has "
        f"{memory / 2**20:.1f} MiB; use engine auto to spread it, a smaller batch, or more memory"
    )


ENGINE = Engine(
    "the best single device",
    solve,
    sees="the problem's own model",
    memory="the simulated peak",
    unlike="yes",
    reduction="none",
)
