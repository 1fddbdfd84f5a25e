"""TP, the order in which every device runs its operators in the papers' programs.

QuickP (III-B) sorts by Kahn's algorithm, as a graph's recorded sort is made. The thesis (3.3) sorts
by depth-first search instead: of two operators, the one that the search leaves later comes first.
The thesis leaves open where the search begins and which successor it follows first; here both are
as recorded in the graph.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph

Sort = Literal["recorded", "depth-first"]
# auto: the paper's own; recorded under model thesis, whose simulator runs every placement in it.
SortName = Literal["auto", Sort]


def depth_first_sort(graph: OperatorGraph) -> IntArray:
    """int64[n]: the operators by falling time of finish. The search begins with each operator in
    the graph's order, and follows an operator's consumers in the order of its tensors."""
    source, target, _ = graph.edges
    order = np.argsort(source, kind="stable")
    begin = np.searchsorted(source[order], np.arange(graph.operator_count + 1)).tolist()
    consumers = target[order].tolist()
    found = [False] * graph.operator_count
    finished: list[int] = []
    for root in range(graph.operator_count):
        if found[root]:
            continue
        found[root] = True
        path = [(root, begin[root])]  # each with the next of its consumers to look at
        while path:
            i, at = path.pop()
            while at < begin[i + 1] and found[consumers[at]]:
                at += 1
            if at == begin[i + 1]:
                finished.append(i)
                continue
            path.append((i, at + 1))
            found[consumers[at]] = True
            path.append((consumers[at], begin[consumers[at]]))
    return np.array(finished[::-1], dtype=np.int64)
