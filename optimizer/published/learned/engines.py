"""The learned engines as they are registered. torch is loaded when one of them solves."""

from __future__ import annotations

import argparse
from argparse import _ArgumentGroup
from functools import partial
from pathlib import Path
from typing import get_args

from placewire.optimizer.commands.arguments import output_file
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.learned import colocrl, hrl
from placewire.optimizer.published.learned.nodes import units
from placewire.optimizer.published.learned.settings import (
    CURVES,
    MOST_COLOCRL_NODES,
    MOST_PLACETO_NODES,
    Feature,
    RecurrentSettings,
)
from placewire.optimizer.registry import Refusal


def _solve_hsdag(
    problem: Problem, settings: SolveSettings, progress: Report | None = None
) -> Solution:
    from placewire.optimizer.published.learned.hsdag import solve

    return solve(problem, settings, progress)


def _solve_placeto(
    problem: Problem, settings: SolveSettings, progress: Report | None = None
) -> Solution:
    from placewire.optimizer.published.learned.placeto import solve

    return solve(problem, settings, progress)


def _solve_recurrent(
    engine: str,
    recurrent: RecurrentSettings,
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
) -> Solution:
    from placewire.optimizer.published.learned.recurrent import solve

    return solve(engine, recurrent, problem, settings, progress)


def _placeto_accepts(problem: Problem) -> Refusal | None:
    return _accepts_nodes(problem, "placeto", MOST_PLACETO_NODES, "placeto")


def _colocrl_accepts(problem: Problem) -> Refusal | None:
    return _accepts_nodes(problem, "colocrl", MOST_COLOCRL_NODES, "hsdag")


def _accepts_nodes(problem: Problem, engine: str, most: int, reduction: str) -> Refusal | None:
    count = units(problem).count
    if count <= most:
        return None
    return Refusal(
        f"{engine} decides node by node with all {count:,} nodes in view, and takes {most:,} at "
        f"most; reduce the graph (--reduction {reduction})"
    )


def _add_policy(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="begin with this trained policy; with --moves 0 it is applied without training",
    )
    group.add_argument(
        "--save-policy", type=output_file, metavar="FILE", help="write the trained policy"
    )


def _add_curve(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--curve", type=_curve, metavar="FILE", help="write the training curve: .csv or .png"
    )


def _add_features(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--without",
        nargs="+",
        choices=get_args(Feature),
        default=[],
        help="the paper's ablations: features that a new policy leaves out",
    )


def _curve(text: str) -> Path:
    if Path(text).suffix not in CURVES:
        raise argparse.ArgumentTypeError(f"{text!r} ends in neither {' nor '.join(CURVES)}")
    return output_file(text)


_LEARNED = partial(
    Engine,
    sees="the problem's own model",
    memory="the simulated peak, charged",
    unlike="yes",
)
HSDAG = _LEARNED(
    "a policy that groups operators and chooses devices, by REINFORCE",
    _solve_hsdag,
    paper="Duan et al., HSDAG (NeurIPS 2024)",
    section="2; table 4",
    reduction="none",
    output_options=("save_policy", "curve"),
    options=(_add_policy, _add_curve, _add_features),
)
PLACETO = _LEARNED(
    "a policy that places node by node, by REINFORCE",
    _solve_placeto,
    paper="Addanki et al., Placeto (NeurIPS 2019)",
    section="as others describe it",
    reduction="placeto",
    accepts=_placeto_accepts,
    output_options=("save_policy", "curve"),
    options=(_add_policy, _add_curve),
)
COLOCRL = _LEARNED(
    "a policy that reads and places co-location groups in sequence, by REINFORCE",
    partial(_solve_recurrent, colocrl.ENGINE, colocrl.SETTINGS),
    paper="Mirhoseini et al., ColocRL (ICML 2017)",
    section="as others describe it",
    reduction="colocrl",
    accepts=_colocrl_accepts,
    output_options=("curve",),
    options=(_add_curve,),
)
HRL = _LEARNED(
    "a policy that groups operators and places the groups in sequence, by REINFORCE",
    partial(_solve_recurrent, hrl.ENGINE, hrl.SETTINGS),
    paper="Mirhoseini et al., hierarchical planner (ICLR 2018)",
    section="as others describe it",
    reduction="none",
    output_options=("curve",),
    options=(_add_curve,),
)
