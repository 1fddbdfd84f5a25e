"""Solves a program with Gurobi, which takes hyperbolas as cones.

gurobipy comes with a licence for small programs. Gurobi itself says whether a larger licence is
installed: it is given a trivial program just above that size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from placewire.optimizer.published.formulations.answer import Answer
from placewire.optimizer.published.formulations.errors import FormulationRefusedError
from placewire.optimizer.published.formulations.program import OBJECTIVE, Program

# The limits of gurobipy 13's own licence; Gurobi answers a larger program with error 10010.
FREE_COLUMNS = FREE_ROWS = 2000
FREE_COLUMNS_WITH_CONES = 200
_TOO_LARGE = 10010


@contextmanager
def _environment() -> Iterator[Any]:
    """An environment that prints nothing. Raises FormulationRefusedError without gurobipy, and
    where Gurobi does not start."""
    try:
        import gurobipy
    except ImportError as error:
        raise FormulationRefusedError(
            "the solver gurobi needs the package gurobipy (pip install 'placewire[gurobi]'); "
            "or use the open solver, which needs nothing: --solver highs"
        ) from error
    try:
        environment = gurobipy.Env(empty=True)
        environment.setParam("OutputFlag", 0)
        environment.start()
    except gurobipy.GurobiError as error:
        raise FormulationRefusedError(
            f"gurobi does not start: {error}; use the open solver, which needs no licence: "
            "--solver highs"
        ) from error
    try:
        yield environment
    finally:
        environment.dispose()


def has_full_licence() -> bool:
    import gurobipy

    with _environment() as environment, gurobipy.Model(env=environment) as model:
        model.addMVar(FREE_COLUMNS + 1)
        try:
            model.optimize()
        except gurobipy.GurobiError as error:
            if error.errno != _TOO_LARGE:
                raise FormulationRefusedError(f"gurobi refuses to run: {error}") from error
            return False
        return True


def solve(program: Program, seconds: float, gap: float) -> Answer:
    """Solves within `seconds`, to the relative gap."""
    import gurobipy

    with _environment() as environment, gurobipy.Model(env=environment) as model:
        values = _load(model, program)
        model.Params.TimeLimit = seconds
        model.Params.MIPGap = gap
        model.Params.FeasibilityTol = 1e-8
        model.NumStart = len(program.starts)
        for k, start in enumerate(program.starts):
            model.Params.StartNumber = k
            values[start.columns].Start = start.values
        model.optimize()
        codes = gurobipy.GRB.Status
        words = {
            codes.OPTIMAL: "within the gap",
            codes.INFEASIBLE: "infeasible",
            # The objective is bounded below by 0.
            codes.INF_OR_UNBD: "infeasible",
            codes.TIME_LIMIT: "time limit",
            codes.SUBOPTIMAL: "numerical trouble",
            codes.NUMERIC: "numerical trouble",
        }.get(model.Status, f"status {model.Status}")
        found = model.SolCount > 0
        return Answer(
            values=np.asarray(values.X, dtype=np.float64) if found else None,
            objective=float(model.ObjVal) if found else np.inf,
            bound=-np.inf if words == "infeasible" else float(model.ObjBound),
            infeasible=words == "infeasible",
            words=words,
        )


def _load(model: Any, program: Program) -> Any:
    import gurobipy

    kinds = np.where(program.whole, gurobipy.GRB.BINARY, gurobipy.GRB.CONTINUOUS)
    values = model.addMVar(len(program.high), lb=0.0, ub=program.high, vtype=kinds)
    if len(program.limit):
        senses = np.where(program.equal, "=", "<")
        model.addMConstr(program.matrix, values, senses, program.limit)
    one = values.tolist()
    cones = program.hyperbolas
    for slow, rate, switch in zip(cones.slow, cones.rate, cones.switch, strict=True):
        model.addQConstr(one[slow] * one[rate] >= one[switch] * one[switch])
    model.setObjective(one[OBJECTIVE], gurobipy.GRB.MINIMIZE)
    return values
