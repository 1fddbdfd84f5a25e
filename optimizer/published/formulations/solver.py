"""The names of the solvers of published formulations."""

from __future__ import annotations

from typing import Literal

# auto: cp-sat for moirai, highs for the others.
SolverName = Literal["auto", "highs", "gurobi", "cp-sat"]
