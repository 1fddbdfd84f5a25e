"""Composes each paper's formulation from its constraints.

P1      thesis 3.3; ICC (P1)     every pair of operators in the sort (3.6), one bandwidth
P2      thesis 3.5               the same, with a decided bandwidth (3.7)-(3.9)
P3      thesis 4.3; ICC (P2)     for the reduced graph: groups (4.2)-(4.5), and (4.7) only over
                                 the parallelizable pairs R
P3 of one bandwidth  thesis 5.4  the same without (3.7)-(3.9): "Bf. Band Opt." of table 5.1, and
                                 what "without bandwidth allocation" means in figures 5.3 and 5.4
moirai  Moirai III-D             unlike devices, a decided order, flows that wait (moirai.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.formulations import constraints as c
from placewire.optimizer.published.formulations import moirai
from placewire.optimizer.published.formulations.errors import FormulationRefusedError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import (
    Network,
    decided_network,
    fixed_network,
    full_mesh,
)
from placewire.optimizer.published.formulations.program import Draft, Family
from placewire.optimizer.published.formulations.topological_sort import Sort, SortName
from placewire.optimizer.published.formulations.transfers import (
    Transfers,
    allocated,
    apart,
    between,
    decided_rates,
)

PaperName = Literal[
    "icc-p1", "icc-p2", "thesis-p1", "thesis-p2", "thesis-p3", "thesis-p3-fixed", "moirai"
]
_DECIDED = {"thesis-p2", "thesis-p3"}
_OF_A_REDUCED_GRAPH = {"icc-p2", "thesis-p3", "thesis-p3-fixed"}


@dataclass(frozen=True)
class Formulation:
    """A draft, and the columns of its decision: x int64[n, D]; transfers.rate for bandwidths; start
    int64[n] where the order is decided too, else None. instance: what it is of."""

    name: PaperName
    instance: Instance
    draft: Draft
    horizon_seconds: float
    x: IntArray
    network: Network
    transfers: Transfers
    start: IntArray | None = None


def formulate(
    problem: Problem, name: PaperName, *, with_rows: bool = True, sort: SortName = "auto"
) -> Formulation:
    """Sizes the formulation and does not build it. with_rows: False for a solver that knows
    intervals, which takes the programs without rows. Raises FormulationRefusedError where the
    paper does not describe the cluster or the problem's model does not have the sort,
    FormulationTooLargeError where there are more rows than can be counted."""
    instance = Instance(problem, sort_of(name, problem, sort))
    if name == "moirai":
        return _moirai(instance, with_rows=with_rows)
    if name in _DECIDED:
        network = decided_network(problem)
    else:
        network = fixed_network(problem, with_latency=name.startswith("thesis"))
    core = c.core(instance, c.horizon(instance, network))
    if not with_rows:
        transfers = decided_rates(core, network) if name in _DECIDED else Transfers([])
        draft = Draft(core.columns, [])
        return Formulation(name, instance, draft, core.horizon_seconds, core.x, network, transfers)
    grouped = name in _OF_A_REDUCED_GRAPH
    families = [c.step(core), c.memory(core), c.durations(core)]
    families += _reduced(core) if grouped else _whole(core)
    silent, sending = _split_edges(instance, grouped)
    families.append(c.precedence(core, silent))
    if name in _DECIDED:
        transfers = allocated(core, network, sending)
    elif name.startswith("thesis") and network.uniform:
        transfers = apart(core, network, sending)
    else:
        transfers = between(core, network, sending)
    draft = Draft(core.columns, [*families, *transfers.families], transfers.hyperbolas)
    return Formulation(name, instance, draft, core.horizon_seconds, core.x, network, transfers)


def sort_of(name: PaperName, problem: Problem, asked: SortName) -> Sort:
    """What `asked` stands for. Raises FormulationRefusedError."""
    if problem.model == "thesis":
        if asked == "depth-first":
            raise FormulationRefusedError(
                f"{name}: --model thesis runs every placement in the recorded sort, and would "
                "score another one than --sort depth-first has decided; leave --sort out, or take "
                "another model (--model contended)"
            )
        return "recorded"
    if asked != "auto":
        return asked
    return "depth-first" if name.startswith("thesis") else "recorded"


def _moirai(instance: Instance, *, with_rows: bool) -> Formulation:
    network = full_mesh(instance.problem)
    core = c.core(instance, c.horizon(instance, network))
    families = [c.step(core), c.memory(core), c.durations(core)]
    families += moirai.families(core, network) if with_rows else []
    draft = Draft(core.columns, families if with_rows else [])
    return Formulation(
        "moirai", instance, draft, core.horizon_seconds, core.x, network, Transfers([]), core.start
    )


def _whole(core: c.Core) -> list[Family]:
    """The rows of P1 and P2: (3.3), co-location by handles, and (3.6) over O."""
    instance = core.instance
    return [
        c.one_device(core, np.arange(instance.operators)),
        c.together(core),
        c.in_order(core, instance.all_pairs, instance.all_pair_count, "(3.6)"),
    ]


def _reduced(core: c.Core) -> list[Family]:
    """The rows of P3: (4.2)-(4.5), and (4.7) over R."""
    instance = core.instance
    inside, outside = instance.parallel_pair_counts
    return [
        *c.group_devices(core),
        c.one_device(core, np.flatnonzero(instance.group_of < 0)),
        c.in_sequence(core, lambda: instance.parallel_pairs()[0], inside),
        c.in_order(core, lambda: instance.parallel_pairs()[1], outside, "(4.7)"),
    ]


def _split_edges(instance: Instance, grouped: bool) -> tuple[IntArray, IntArray]:
    """(edges that never cost anything, edges that may). grouped: edges within a group never do, as
    in (4.6); (3.5) has no groups."""
    i, j, bits = instance.edges
    silent = bits == 0
    if grouped:
        group = instance.group_of
        silent |= (group[i] == group[j]) & (group[i] >= 0)
    return np.flatnonzero(silent), np.flatnonzero(~silent)
