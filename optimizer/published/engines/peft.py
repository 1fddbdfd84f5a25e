"""Engine `peft`: predict earliest finish time.

Arabnejad, Barbosa: "List scheduling algorithm for heterogeneous systems by an optimistic cost
table" (IEEE TPDS 25(3), 2014), section 4. An entry of the table, for an operator on a device, is
the longest of the shortest ways from there to the end, where every operator on the way is on the
device that is best for it. The ready operator whose row has the largest mean is next; it goes to
the device where the sum of its finish and its entry is least, into a gap if it fits. Memory is
treated as in `heft`.
"""

from __future__ import annotations

import heapq

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.device_capacity import within_memory
from placewire.optimizer.engines.heft import inserted
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import typical_transfer_seconds
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import Deadline, deadline
from placewire.optimizer.published.engines.shared.kinds import list_engine


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where an operator, with its group, finds no device with room, and
    OutOfTimeError."""
    table = optimistic_costs(problem, deadline("peft", settings))
    # An entry of inf predicts nothing.
    ahead = np.where(np.isfinite(table), table, 0.0)
    order = _ready_order(problem, ahead.mean(axis=1))
    return within_memory(
        problem, "peft", lambda capacities: inserted(problem, capacities, order, ahead)
    )


def optimistic_costs(problem: Problem, until: Deadline) -> FloatArray:
    """float64[n, D]: equation 5, transfers at their mean; inf where an operator behind this one can
    run on no device."""
    graph = problem.graph
    seconds, transfer = problem.seconds, typical_transfer_seconds(problem)
    table = np.zeros_like(seconds)
    for k, i in enumerate(graph.topological_order[::-1].tolist()):
        until.require("its optimistic cost table", k)
        for e in graph.output_tensors(i).tolist():
            for j in graph.tensor_consumers(e).tolist():
                here = table[j] + seconds[j]
                np.maximum(table[i], np.minimum(here, here.min() + transfer[e]), out=table[i])
    return table


def _ready_order(problem: Problem, rank: FloatArray) -> IntArray:
    """int64[n]: the ready operator with the largest rank float64[n] is always next, in a tie the
    lower number. A rank may grow along an edge."""
    graph = problem.graph
    missing = np.diff(graph.inputs[0]).tolist()
    urgency = (-rank).tolist()
    ready = [(urgency[i], i) for i, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for e in graph.output_tensors(i).tolist():
            for j in graph.tensor_consumers(e).tolist():
                missing[j] -= 1
                if missing[j] == 0:
                    heapq.heappush(ready, (urgency[j], j))
    return np.array(order, dtype=np.int64)


ENGINE = list_engine(
    "by an optimistic cost table", solve, paper="Arabnejad, Barbosa, PEFT (TPDS 2014)", section="4"
)
