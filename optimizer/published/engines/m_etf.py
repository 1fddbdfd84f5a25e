"""Engine `m-etf`: earliest time first within the memories.

Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie, Gupta: "Baechi: fast device placement of machine
learning graphs" (SoCC 2020), m-ETF: of all pairs of a ready operator and a device with room for it,
the pair with the earliest start is next; a device without room is passed over. The paper names no
rule for ties; here they are broken as in shared/earliest_time_first.py.
"""

from __future__ import annotations

from placewire.optimizer.engines.device_capacity import within_memory
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.engines.shared.earliest_time_first import EarliestTimeFirst
from placewire.optimizer.published.engines.shared.kinds import list_engine


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where a group finds no device with room, and OutOfTimeError."""
    until = deadline("m-etf", settings)
    return within_memory(
        problem, "m-etf", lambda capacities: EarliestTimeFirst(problem, capacities, until).run()
    )


ENGINE = list_engine(
    "earliest time first", solve, paper="Jeon et al., Baechi (SoCC 2020)", section="m-ETF"
)
