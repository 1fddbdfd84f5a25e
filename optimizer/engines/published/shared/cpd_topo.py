"""CPD-TOPO, the order of Celeritas' placements: depth first along critical paths.

Xu, Xie, Liao, Zhou: "Celeritas: fast optimizer for large dataflow graphs" (2022),
section 5.1.3 and algorithm 1.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from optimizer.engines.units import downward_rank, typical_transfer_seconds, upward_rank
from optimizer.graph import FloatArray, IntArray, OperatorGraph
from optimizer.problem import Problem


def critical_path_seconds(problem: Problem) -> FloatArray:
    """Cpath float64[n]: the longest path through each operator, tlevel (2) and blevel (3) added."""
    transfer = typical_transfer_seconds(problem)
    return downward_rank(problem, transfer) + upward_rank(problem, transfer)


def cpd_topo(graph: OperatorGraph, cpath: FloatArray) -> IntArray:
    """int64[n]: a topological order. An operator is followed by the one that it made ready and that
    has the longest path float64[n] through it; ties by number."""
    missing = np.diff(graph.inputs[0]).tolist()
    longest = cpath.tolist()
    roots = [i for i, count in enumerate(missing) if count == 0]
    queue = deque(sorted(roots, key=lambda i: (-longest[i], i)))
    order = []
    while queue:
        i = queue.popleft()
        order.append(i)
        now_ready = []
        for e in graph.output_tensors(i).tolist():
            for j in graph.tensor_consumers(e).tolist():
                missing[j] -= 1
                if missing[j] == 0:
                    now_ready.append(j)
        queue.extendleft(sorted(now_ready, key=lambda j: (longest[j], -j)))
    return np.array(order, dtype=np.int64)
