"""Engine `random`: puts every operator on any device; what learned methods are compared with.

Placements are drawn uniformly from those that keep every co-location group on one device that can
run it. A placement that exceeds a memory is drawn again, for as long as the time limit allows. The
placement runs by list scheduling.
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
    """Draws settings.moves times at most. Raises InfeasibleError where no placement fitted."""
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
    "any device for every operator, until one fits", solve, paper="every paper's baseline",
    decides="devices", sees="nothing", memory="the simulated peak: drawn again", unlike="yes",
    reduction="none",
)  # fmt: skip
