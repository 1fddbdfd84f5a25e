"""GCOF, graph coarsening with operator fusion: Moirai, section III-B, algorithm 1.

Depth first from the roots, an operator and its successor are fused where their kinds together are a
rule of the backend (fusion_rules.py), and bound where their kinds are part of a rule; operators
that are only bound in the end are released. The first of the two must have no other successor (a
direct or a multi-input connection, figure 6), so that no other path joins them and no cycle arises.

Beyond the paper: several roots are taken in the recorded order; an item of a tuple counts as part
of the operator that made the tuple, as the graphs of the paper have no such operators; and
operators are fused only where a device can run and hold them, with at most one co-location key.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from placewire.optimizer.graph.operator_graph import TUPLE_ITEM, OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.reductions.fusion_rules import (
    EIGEN,
    INDUCTOR,
    FusionRules,
    Kinds,
)
from placewire.optimizer.published.reductions.shared.groups import root
from placewire.optimizer.reductions.contract import Reduced, contract
from placewire.optimizer.reductions.merging import MergingGraph, distinct_edges
from placewire.optimizer.reductions.reduction import Reduction
from placewire.optimizer.registry import Refusal


def reduce_as_eigen(problem: Problem) -> Reduced:
    return coarsen_by_fusion(problem, EIGEN)


def reduce_as_inductor(problem: Problem) -> Reduced:
    return coarsen_by_fusion(problem, INDUCTOR)


def refusal(rules: FusionRules, problem: Problem) -> Refusal | None:
    graph = problem.graph
    if any(rules.kind(one) for one in set(graph.types)):
        return None
    return Refusal(
        f"GCOF fuses by operator types, and {rules.backend}'s rules know none of this graph's "
        f"({', '.join(sorted(set(graph.types))[:3])}); it takes graphs with types of ATen, ONNX or "
        "TensorFlow"
    )


def coarsen_by_fusion(problem: Problem, rules: FusionRules) -> Reduced:
    from placewire.optimizer.published.kernels.pairs import merge_pairs

    graph = problem.graph
    pairs = [pair for group in fused_groups(graph, rules) for pair in pairwise(group)]
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    merging = MergingGraph(problem)
    merge_pairs(merging.tables, np.ascontiguousarray(first), np.ascontiguousarray(second))
    return contract(problem, merging.groups())


def fused_groups(graph: OperatorGraph, rules: FusionRules) -> list[list[int]]:
    """The groups of several operators that algorithm 1 fuses, each in the order of its rule."""
    return _Search(graph, rules).groups()


class _Search:
    """The coarsened graph while algorithm 1 runs. A vertex has the number of the operator that was
    reached first, and is released into its `parts`: a single one where all of it is fused."""

    def __init__(self, graph: OperatorGraph, rules: FusionRules) -> None:
        self._rules = rules
        self._base = base = _with_tuple_items(graph)
        self._home = list(range(graph.operator_count))
        self._parts: dict[int, list[list[int]]] = {}
        for i in graph.topological_order.tolist():
            self._parts.setdefault(base[i], [[]])[0].append(i)
        self._kinds: dict[int, Kinds] = {
            i: (rules.kind(graph.types[i]) or "",) for i in self._parts
        }
        # For each vertex, the operators that read the output of its last operator.
        self._following: dict[int, dict[int, None]] = {i: {} for i in self._parts}
        source, target, _ = distinct_edges(graph)
        for i, j in zip(source.tolist(), target.tolist(), strict=True):
            if base[i] != base[j]:
                self._following[base[i]][base[j]] = None
        read = {j for after in self._following.values() for j in after}
        self._roots = [i for i in self._parts if i not in read]

    def groups(self) -> list[list[int]]:
        """Runs the search; only once."""
        waiting, done = self._roots[::-1], set[int]()
        while waiting:
            vertex = root(self._home, waiting.pop())
            if vertex in done:
                continue
            while len(after := self._successors(vertex)) == 1 and self._joins(vertex, after[0]):
                pass
            done.add(vertex)
            waiting.extend(reversed(after))
        parts = [part for parts in self._parts.values() for part in parts]
        # A tuple and its items alone were not fused by a rule.
        return [part for part in parts if len({self._base[i] for i in part}) > 1]

    def _joins(self, vertex: int, successor: int) -> bool:
        """The paper's fuse() or bind() of a vertex and its only successor; False without a rule."""
        kinds = self._kinds[vertex] + self._kinds[successor]
        if not self._rules.is_part(kinds):
            return False
        parts = self._parts[vertex] + self._parts.pop(successor)
        fused = self._rules.is_rule(kinds)
        self._parts[vertex] = [[i for part in parts for i in part]] if fused else parts
        self._kinds[vertex] = kinds
        self._following[vertex] = self._following.pop(successor)
        self._home[successor] = vertex
        return True

    def _successors(self, vertex: int) -> list[int]:
        return list(dict.fromkeys(root(self._home, j) for j in self._following[vertex]))


def _with_tuple_items(graph: OperatorGraph) -> list[int]:
    """For each item of a tuple the operator that made the tuple, for other operators themselves."""
    base = list(range(graph.operator_count))
    source, target, _ = distinct_edges(graph)
    inputs = np.bincount(target, minlength=graph.operator_count)
    producer = dict(zip(target.tolist(), source.tolist(), strict=True))
    for i in graph.topological_order.tolist():
        if graph.types[i] == TUPLE_ITEM and inputs[i] == 1:
            base[i] = base[producer[i]]
    return base


GCOF_EIGEN = Reduction(
    "GCOF: what Eigen's rules fuse",
    reduce_as_eigen,
    paper="Zhang et al., Moirai (2023)",
    section="III-B, algorithm 1, table I",
    accepts=partial(refusal, EIGEN),
)
GCOF_INDUCTOR = Reduction(
    "GCOF: what rules in the style of torch's inductor fuse",
    reduce_as_inductor,
    paper="Zhang et al., Moirai (2023)",
    section="III-B, algorithm 1",
    accepts=partial(refusal, INDUCTOR),
)
