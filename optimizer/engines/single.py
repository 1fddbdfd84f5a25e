"""Engine `single`: everything on the one device that is fastest among those with memory for it."""

from __future__ import annotations

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.simulation.simulate import recorded_priority, simulate


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError naming what the best device would need."""
    found = best_single(problem)
    if found is None:
        raise InfeasibleError(_why_none(problem))
    return found[0]


def best_single(problem: Problem) -> tuple[Solution, float] | None:
    """(solution, step seconds); None where no device has memory, or times, for all operators."""
    best: tuple[Solution, float] | None = None
    for d, step, peak in _candidates(problem):
        fits = peak <= int(problem.cluster.memory_bytes[d])
        if fits and (best is None or step < best[1]):
            best = _on(problem, d), step
    return best


def no_rates(problem: Problem) -> FloatArray:
    servers, rails = len(problem.cluster.servers), len(problem.cluster.rails)
    return np.zeros((servers, servers, rails))


def _on(problem: Problem, device: int) -> Solution:
    rates = no_rates(problem) if problem.decides_rates else None
    where = np.full(problem.graph.operator_count, device, dtype=np.int64)
    return Solution(where, recorded_priority(problem), rates)


def _candidates(problem: Problem) -> list[tuple[int, float, int]]:
    """(device, step seconds, peak bytes) of each that can run every operator. Peak and step are
    the same on devices of one type."""
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
    decides="devices",
    sees="the problem's own model",
    memory="the simulated peak",
    unlike="yes",
    reduction="none",
)
