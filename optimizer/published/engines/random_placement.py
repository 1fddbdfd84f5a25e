"""Engine `random`: every operator on any device, the baseline of learned methods.

Uniform over the placements that keep co-location groups together on devices that can run them, and
fit: one that exceeds a memory is drawn again, for as long as the time limit allows. It runs by list
scheduling.
"""

from __future__ import annotations

import numpy as np

from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.engines.shared.reassignment import Reassignment
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the draws. Raises InfeasibleError where none of them fitted."""
    search = Reassignment(problem, by_remaining_path)
    generator = np.random.default_rng(settings.seed)
    until, draws = deadline("random", settings), 0
    while (settings.moves is None or draws < settings.moves) and not (draws and until.is_over):
        found, draws = search.cost(search.random(generator)), draws + 1
        if found.excess == 0.0 and np.isfinite(found.cost):
            return Solution(found.device, found.priority, None)
    raise InfeasibleError(
        f"random: none of {draws:,} random placements is within the devices' memories and reaches "
        "every operator; engine auto searches within the memories"
    )


ENGINE = Engine(
    "any device for every operator, until one fits",
    solve,
    paper="every paper's baseline",
    decides="devices",
    sees="nothing",
    memory="the simulated peak: drawn again",
    unlike="yes",
    reduction="none",
)
