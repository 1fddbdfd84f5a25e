"""The published formulations as engines; their solvers are imported when an engine first solves."""

from __future__ import annotations

from argparse import _ArgumentGroup
from functools import partial
from typing import TYPE_CHECKING, get_args

from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations.network import (
    refuse_missing_rails,
    refuse_servers_without_common_rail,
)
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.formulations.topological_sort import SortName

if TYPE_CHECKING:
    from placewire.optimizer.published.formulations.papers import PaperName


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


def _add_sort(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--sort",
        choices=get_args(SortName),
        default="auto",
        help="the order in which every device runs its operators: recorded, the graph's own, by "
        "Kahn's algorithm; or depth-first; default: auto, depth-first for the thesis' programs and "
        "recorded for the others; only recorded with --model thesis, which runs every placement in "
        "it",
    )


_program = partial(
    Engine, sees="each transfer alone", memory="static sum: a constraint", unlike="yes",
    reduction="none", options=(_add_solver,),
)  # fmt: skip
_sorted = partial(_program, options=(_add_solver, _add_sort))
_quickp = partial(
    _sorted,
    paper="QuickP (ICC 2025)",
    decides="devices",
    accepts=refuse_servers_without_common_rail,
)
_thesis = partial(
    _sorted, paper="Joint Optimization of Algebraic Transformation, Device Placement … (thesis)"
)

MOIRAI = _program(
    "mixed-integer program: an order, unlike devices and channels", partial(_solve, "moirai"),
    paper="Zhang et al., Moirai (2023)", section="III-D, (4)-(8)", decides="devices, order",
    sees="one transfer at a time at each device",
)  # fmt: skip
ICC_P1 = _quickp("integer program", partial(_solve, "icc-p1"), section="(P1)")
ICC_P2 = _quickp(
    "the same for the fused graph", partial(_solve, "icc-p2"), section="(P2)", reduction="icc"
)
THESIS_P1 = _thesis(
    "mixed-integer program, one bandwidth", partial(_solve, "thesis-p1"), section="3.3",
    decides="devices", accepts=refuse_servers_without_common_rail,
)  # fmt: skip
THESIS_P2 = _thesis(
    "the same, bandwidths decided", partial(_solve, "thesis-p2"), section="3.5",
    decides="devices, rates", accepts=refuse_missing_rails,
)  # fmt: skip
THESIS_P3 = _thesis(
    "the same for the reduced graph", partial(_solve, "thesis-p3"), section="4.3",
    decides="devices, rates", accepts=refuse_missing_rails, reduction="thesis",
)  # fmt: skip
THESIS_P3_FIXED = _thesis(
    "the same, one bandwidth", partial(_solve, "thesis-p3-fixed"), section="4.3, table 5.1",
    decides="devices", accepts=refuse_servers_without_common_rail, reduction="thesis",
)  # fmt: skip
