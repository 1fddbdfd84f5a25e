"""What the programs over CP-SAT have in common: the operators' devices, and how a search is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance

_WORKERS = 2
# Intervals, rows and clauses together. A million take some fifteen seconds to build.
_MOST_PARTS = 1_000_000

# The value of a variable or literal.
Value = Callable[[Any], int]
# Hears the values, the objective and the bound of every better answer.
Told = Callable[[Value, float, float], None]


@dataclass(frozen=True)
class Ended:
    """How a search ended. bound: of the model's objective."""

    bound: float
    infeasible: bool
    words: str


def refuse_too_large(name: str, parts: int) -> None:
    """Raises FormulationTooLargeError."""
    if parts > _MOST_PARTS:
        raise FormulationTooLargeError(
            f"{name} is too large: {parts:,} intervals, rows and clauses, of which at most "
            f"{_MOST_PARTS:,} are tried over cp-sat. Engine auto takes graphs of this size; a "
            "reduction makes them smaller (--reduction thesis)"
        )


def places(model: Any, instance: Instance, may_run: Any) -> list[list[Any]]:
    """x: a literal for each operator and device, [n][D]. Operators that share a device share their
    literals. Adds that each is on one device where it may run, bool[n, D], and within the static
    memories."""
    devices = range(instance.devices)
    on = [[model.new_bool_var("") for _ in devices] for _ in range(instance.operators)]
    for group in instance.groups:
        for i in group[1:].tolist():
            on[i] = on[int(group[0])]
    for row in _distinct(on):
        model.add_exactly_one(row)
    for row, may in zip(on, may_run.tolist(), strict=True):
        for literal, here in zip(row, may, strict=True):
            if not here:
                model.add(literal == 0)
    held = instance.memory_bytes.tolist()
    for d, room in enumerate(instance.problem.cluster.memory_bytes.tolist()):
        if sum(held) > room:
            model.add(sum(b * row[d] for b, row in zip(held, on, strict=True)) <= room)
    return on


def hint_places(model: Any, on: Sequence[list[Any]], device: IntArray) -> None:
    """Begins the search with these devices, int64[n], which must keep groups together."""
    where = {id(row): d for row, d in zip(on, device.tolist(), strict=True)}
    for row in _distinct(on):
        for d, literal in enumerate(row):
            model.add_hint(literal, d == where[id(row)])


def _distinct(on: Sequence[list[Any]]) -> list[list[Any]]:
    return list({id(row): row for row in on}.values())


def search(model: Any, until: float, gap: float, told: Told) -> Ended:
    """Searches until time.monotonic() is about `until`, or the relative gap is reached."""
    from ortools.sat.python import cp_model

    class Better(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            told(self.value, self.objective_value, self.best_objective_bound)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(until - time.monotonic(), 0.01)
    solver.parameters.num_workers = _WORKERS
    solver.parameters.relative_gap_limit = gap
    # Probing every literal beforehand takes longer here than it saves.
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(model, Better())
    assert status != cp_model.MODEL_INVALID, model.validate()
    ended = {cp_model.OPTIMAL: "within the gap", cp_model.INFEASIBLE: "infeasible"}
    return Ended(
        solver.best_objective_bound, status == cp_model.INFEASIBLE, ended.get(status, "time limit")
    )
