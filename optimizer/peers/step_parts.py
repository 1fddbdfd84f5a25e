"""Takes a step of several micro-batches apart, as peers need it: which gradients are summed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.graph.halves import forward_half
from placewire.optimizer.graph.operator_graph import ADDITION, PARAMETER, OperatorGraph


@dataclass(frozen=True)
class Gradient:
    """root: the sum over all micro-batches. leaves: by micro-batch the operator whose result is its
    share. additions: the root and those between. readers: the operators after the sum that read it,
    its update among them."""

    root: int
    leaves: tuple[int, ...]
    additions: tuple[int, ...]
    bytes: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class StepParts:
    """forward bool[n]: operators that the loss needs. before: shared operators that need no
    micro-batch, such as parameters. after: shared ones that need several, but for the additions
    of gradients; both in the recorded order."""

    graph: OperatorGraph
    micro_batches: int
    forward: BoolArray
    gradients: tuple[Gradient, ...]
    before: IntArray
    after: IntArray

    def earliest(self, operators: Iterable[int]) -> int:
        """The one of at least one operator that was recorded first."""
        return min(operators, key=lambda i: int(self.graph.position[i]))

    @cached_property
    def shown(self) -> Mapping[int, frozenset[int]]:
        """By operator the parameters that it is or, where it is shared, is made of; or, where it
        only views such a tensor in a micro-batch, as a transposed weight does, those that it shows.
        """
        graph, shown = self.graph, dict[int, frozenset[int]]()
        before = set(self.before.tolist())
        for i in graph.topological_order.tolist():
            made = graph.tensor_producer[graph.input_tensors(i)].tolist()
            read = frozenset[int]().union(*(shown.get(j, ()) for j in made))
            views = graph.micro_batch[i] >= 0 and graph.activation_bytes[i] == 0 and bool(made)
            if i in before or (views and all(j in shown for j in made)):
                shown[i] = read | {i} if graph.types[i] == PARAMETER else read
        return shown

    def parameters_read(self, i: int) -> frozenset[int]:
        """The parameters that operator i reads, or something shared that is made of them."""
        graph = self.graph
        made = graph.tensor_producer[graph.input_tensors(i)].tolist()
        return frozenset[int]().union(*(self.shown.get(j, ()) for j in made))

    def latest(self, operators: Iterable[int]) -> int:
        return max(operators, key=lambda i: int(self.graph.position[i]))


def step_parts(graph: OperatorGraph) -> StepParts:
    """graph: with at least two micro-batches. Raises ValueError where it has fewer, does not name
    its loss, or sums no gradients over them."""
    part = graph.micro_batch
    count = int(part.max(initial=-1)) + 1
    if count < 2:
        raise ValueError("the step has only one micro-batch")
    forward = forward_half(graph)
    if forward is None:
        raise ValueError("the graph does not say which operator makes the loss")
    needs = _needs_micro_batches(graph)
    additions = _additions(graph, needs)
    gradients = []
    inside = set(np.flatnonzero(additions).tolist())
    for root in sorted(inside, key=lambda i: int(graph.position[i])):
        readers = [int(c) for e in graph.output_tensors(root) for c in graph.tensor_consumers(e)]
        if readers and not any(c in inside for c in readers):
            leaves, added = _leaves(graph, root, inside, count)
            size = max(int(graph.tensor_bytes[e]) for e in graph.output_tensors(root))
            gradients.append(Gradient(root, leaves, added, size, tuple(readers)))
    if not gradients:
        raise ValueError("the step adds no gradients of its micro-batches")
    shared = graph.topological_order[part[graph.topological_order] < 0]
    return StepParts(
        graph, count, forward, tuple(gradients), shared[~needs[shared]],
        shared[needs[shared] & ~additions[shared]],
    )  # fmt: skip


def _needs_micro_batches(graph: OperatorGraph) -> BoolArray:
    needs = graph.micro_batch >= 0
    for i in graph.topological_order.tolist():
        if not needs[i]:
            made = graph.tensor_producer[graph.input_tensors(i)]
            needs[i] = bool(needs[made].any())
    return needs


def _additions(graph: OperatorGraph, needs: BoolArray) -> BoolArray:
    """bool[n]: shared additions whose inputs are all of micro-batches or such additions."""
    found = np.zeros(graph.operator_count, dtype=np.bool_)
    for i in graph.topological_order.tolist():
        if graph.micro_batch[i] < 0 and needs[i] and graph.types[i] == ADDITION:
            made = graph.tensor_producer[graph.input_tensors(i)]
            found[i] = bool((found[made] | (graph.micro_batch[made] >= 0)).all())
    return found


def _leaves(
    graph: OperatorGraph, root: int, additions: set[int], count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(by micro-batch the operator that makes its share, the additions of them)"""
    by_part: dict[int, int] = {}
    waiting, added = [root], {root: None}
    while waiting:
        for e in graph.input_tensors(waiting.pop()):
            i = int(graph.tensor_producer[e])
            if i not in additions:
                by_part[int(graph.micro_batch[i])] = i
            elif i not in added:
                waiting.append(i)
                added[i] = None
    known = next(iter(by_part.values()))
    return tuple(by_part.get(m, known) for m in range(count)), tuple(added)
