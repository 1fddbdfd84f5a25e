"""Carries the plan of a captured step over to the same step in core operators."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.units import unit_of_operator
from placewire.optimizer.graph.halves import forward_half, updates
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.written_updates import merge_updates
from placewire.optimizer.simulation.simulate import recorded_priority

_UPDATE, _FORWARD, _BACKWARD = range(3)


def carried_seconds(captured: OperatorGraph, placement: Placement, fine: Problem) -> float:
    """The step of the captured graph's placement on the fine one, with the allocator's rates; inf
    where it exceeds a memory.

    An update stays one operator, with its weight. Each operator follows the captured ones of its
    module and half, in their order: it is where the next one of its type is or, where there is
    none, with the operator before it.
    """
    merged, unmerge = merge_updates(fine)
    device, priority = unmerge(_carried(captured, placement, merged), recorded_priority(merged))
    found = score(fine, Solution(device, priority, None))
    return found.step_seconds if found.excess == 0.0 else float("inf")


def _carried(captured: OperatorGraph, placement: Placement, fine: Problem) -> IntArray:
    number = {name: d for d, name in enumerate(fine.cluster.device_names)}
    home = np.array([number[placement.operators[name]] for name in captured.ids])
    graph = fine.graph
    there, here = _by_place(captured), _by_place(graph)
    device = np.full(graph.operator_count, home[0], dtype=np.int64)
    for place, operators in here.items():
        if not (model := there.get(place)):
            continue
        at = 0
        for i in operators:
            kind = _kind(graph.types[i])
            alike = [k for k in range(at, len(model)) if _kind(captured.types[model[k]]) == kind]
            at = alike[0] + 1 if alike else at
            device[i] = home[model[max(at - 1, 0)]]
    return _whole_units(fine, device)


def _by_place(graph: OperatorGraph) -> dict[tuple[str, int], list[int]]:
    forward, update = forward_half(graph), updates(graph)
    assert forward is not None
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i in graph.topological_order.tolist():
        half = _UPDATE if update[i] else _FORWARD if forward[i] else _BACKWARD
        found[graph.modules[i], half].append(i)
    return found


def _kind(name: str) -> str:
    return "aten.mm.default" if name == "aten.addmm.default" else name


def _whole_units(problem: Problem, device: IntArray) -> IntArray:
    """Each unit where most of its work is."""
    unit = unit_of_operator(problem)
    work = np.zeros((int(unit.max()) + 1, len(problem.cluster.devices)))
    np.add.at(work, (unit, device), problem.seconds.min(axis=1) + 1e-12)
    whole: IntArray = work.argmax(axis=1)[unit]
    return whole
