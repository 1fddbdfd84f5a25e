"""Groups of operators, in words."""

from __future__ import annotations

import networkx as nx

from placewire.optimizer.reductions.merging import distinct_edges


def edges(*pairs, size=0):
    """Tensors of their own for "AB", "AC": A to B, A to C."""
    return [(a, [b], size) for a, b in pairs]


def together(problem, group):
    """{"AB", "C"}: the operators of each label int64[n], as words; -1 is no label."""
    words: dict[int, str] = {}
    for name, label in zip(problem.graph.ids, group.tolist(), strict=True):
        if label >= 0:
            words[label] = words.get(label, "") + name
    return set(words.values())


def between(problem, group):
    """The graph of groups, as networkx sees it."""
    made: nx.DiGraph[int] = nx.DiGraph()
    made.add_nodes_from(set(group.tolist()))
    source, target, _ = distinct_edges(problem.graph)
    made.add_edges_from((a, b) for a, b in zip(group[source], group[target], strict=True) if a != b)
    return made
