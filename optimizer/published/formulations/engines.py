"""The published formulations by name, as engines. What they run on is loaded when one is asked."""

from __future__ import annotations

from argparse import _ArgumentGroup
from functools import partial
from typing import TYPE_CHECKING, get_args

from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations.network import lacks_a_rail, shares_no_rail
from placewire.optimizer.published.formulations.solver import SolverName

if TYPE_CHECKING:
    from placewire.optimizer.published.formulations.papers import PaperName

_ALONE = "each transfer alone"
_LIMIT = "static sum: a constraint"
_MOIRAI = "Zhang et al., Moirai (2023)"
_QUICKP = "QuickP (ICC 2025)"
_THESIS = "Joint Optimization of Algebraic Transformation, Device Placement … (thesis)"


def _solve(
    name: PaperName, problem: Problem, settings: SolveSettings, progress: Report | None = None
) -> Solution:
    from placewire.optimizer.published.formulations.engine import solve

    return solve(name, problem, settings, progress)


def _add_solver(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--solver",
        choices=get_args(SolverName),
        default="auto",
        help="default: auto, cp-sat for moirai and highs for the others, both open",
    )


MOIRAI = Engine(
    "mixed-integer program: an order, unlike devices and channels",
    partial(_solve, "moirai"),
    paper=_MOIRAI,
    section="III-D, (4)-(8)",
    decides="devices, order",
    sees="one transfer at a time at each device",
    memory=_LIMIT,
    unlike="yes",
    reduction="none",
    options=(_add_solver,),
)
ICC_P1 = Engine(
    "integer program",
    partial(_solve, "icc-p1"),
    paper=_QUICKP,
    section="(P1)",
    decides="devices",
    sees=_ALONE,
    memory=_LIMIT,
    unlike="yes",
    reduction="none",
    accepts=shares_no_rail,
    options=(_add_solver,),
)
ICC_P2 = Engine(
    "the same for the fused graph",
    partial(_solve, "icc-p2"),
    paper=_QUICKP,
    section="(P2)",
    decides="devices",
    sees=_ALONE,
    memory=_LIMIT,
    unlike="yes",
    reduction="icc",
    accepts=shares_no_rail,
    options=(_add_solver,),
)
THESIS_P1 = Engine(
    "mixed-integer program, one bandwidth",
    partial(_solve, "thesis-p1"),
    paper=_THESIS,
    section="3.3",
    decides="devices",
    sees=_ALONE,
    memory=_LIMIT,
    unlike="yes",
    reduction="none",
    accepts=shares_no_rail,
    options=(_add_solver,),
)
THESIS_P2 = Engine(
    "the same, bandwidths decided",
    partial(_solve, "thesis-p2"),
    paper=_THESIS,
    section="3.5",
    decides="devices, rates",
    sees=_ALONE,
    memory=_LIMIT,
    unlike="yes",
    reduction="none",
    accepts=lacks_a_rail,
    options=(_add_solver,),
)
THESIS_P3 = Engine(
    "the same for the reduced graph",
    partial(_solve, "thesis-p3"),
    paper=_THESIS,
    section="4.3",
    decides="devices, rates",
    sees=_ALONE,
    memory=_LIMIT,
    unlike="yes",
    reduction="thesis",
    accepts=lacks_a_rail,
    options=(_add_solver,),
)
