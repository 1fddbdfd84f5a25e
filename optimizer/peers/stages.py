"""Cuts a step into the stages of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines import units
from placewire.optimizer.graph.operator_graph import UPDATE, OperatorGraph
from placewire.optimizer.peers.step_parts import StepParts
from placewire.optimizer.problem import Problem


def stages_of(problem: Problem, parts: StepParts, ranges: int, off_equal: float) -> IntArray:
    """int64[n]: of `ranges` stages that of each operator. off_equal: by what part of a stage's work
    a cut may be off. The backward half of a layer is where its forward half is, so that neither its
    weight nor its gradient is sent. What needs no micro-batch is where the first is that reads it,
    a sum of gradients where the first of them is made, and an update, as a norm, where what it
    reads most of is."""
    graph = parts.graph
    stage = np.zeros(graph.operator_count, dtype=np.int64)
    _set_forward(parts, stage, units.mean_seconds(problem), ranges, off_equal)
    _set_backward(parts, stage, ranges)
    after = set(parts.after.tolist())
    for i in parts.before[::-1].tolist():
        stage[i] = min((int(stage[c]) for c in _readers(graph, i) if c not in after), default=0)
    before, order = set(parts.before.tolist()), graph.topological_order
    for i in order[graph.micro_batch[order] < 0].tolist():
        tensors = graph.input_tensors(i)
        if i not in before and len(tensors):
            most = tensors[graph.tensor_bytes[tensors].argmax()]
            stage[i] = stage[graph.tensor_producer[most]]
    return stage


def _set_forward(
    parts: StepParts, stage: IntArray, work: FloatArray, ranges: int, off_equal: float
) -> None:
    graph, part = parts.graph, parts.graph.micro_batch
    order = graph.topological_order
    for m in range(parts.micro_batches):
        inside = order[(part[order] == m) & parts.forward[order]]
        stage[inside] = _cut(parts, inside, work[inside], ranges, off_equal)
    for i in order[(part[order] >= 0) & parts.forward[order]][::-1].tolist():
        same = [c for c in _readers(graph, i) if part[c] == part[i] and parts.forward[c]]
        # A view of a weight is made where it is read, wherever it was recorded.
        own = [] if i in parts.shown and same else [int(stage[i])]
        stage[i] = min([*own, *(int(stage[c]) for c in same)])


def _set_backward(parts: StepParts, stage: IntArray, ranges: int) -> None:
    graph, part = parts.graph, parts.graph.micro_batch
    order = graph.topological_order
    inside = order[(part[order] >= 0) & ~parts.forward[order]].tolist()
    home = _homes(parts, stage)
    of_gradient = _gradient_stages(parts, inside, home)
    for i in inside:
        made = graph.tensor_producer[graph.input_tensors(i)]
        made = made[part[made] == part[i]]
        forth, back = made[parts.forward[made]], made[~parts.forward[made]]
        known = [home[w] for w in parts.parameters_read(i) if w in home]
        if not known:
            known = stage[forth].tolist() + ([of_gradient[i]] if i in of_gradient else [])
        most = int(stage[back].min(initial=ranges - 1))
        stage[i] = min(max(known), most) if known else most


def _homes(parts: StepParts, stage: IntArray) -> dict[int, int]:
    """By parameter the stage whose forward half reads it, where there is only one."""
    graph = parts.graph
    found: dict[int, set[int]] = defaultdict(set)
    for i in np.flatnonzero((graph.micro_batch >= 0) & parts.forward).tolist():
        for w in parts.parameters_read(i):
            found[w].add(int(stage[i]))
    return {w: min(stages) for w, stages in found.items() if len(stages) == 1}


def _gradient_stages(parts: StepParts, inside: list[int], home: dict[int, int]) -> dict[int, int]:
    """The parameter's stage of each gradient, and of what is made for such gradients alone; inside:
    the backward halves, in the recorded order."""
    graph, found = parts.graph, dict[int, int]()
    for gradient in parts.gradients:
        for c in gradient.readers:
            read = parts.parameters_read(c) if graph.types[c] == UPDATE else set()
            found |= {i: home[w] for w in read if w in home for i in gradient.leaves}
    for i in reversed(inside):
        stages = {found.get(c, -1) for c in _readers(graph, i)}
        if i not in found and len(stages) == 1 and -1 not in stages:
            found[i] = stages.pop()
    return found


def _cut(
    parts: StepParts, inside: IntArray, work: FloatArray, ranges: int, off_equal: float
) -> IntArray:
    """int64[...]: the stage of each operator of a forward half, in the recorded order: near equal
    work, where the fewest bytes of results cross, as between two layers."""
    graph = parts.graph
    place = {i: k for k, i in enumerate(inside.tolist())}
    change = np.zeros(len(inside) + 1)
    for i, k in place.items():
        for e in [] if i in parts.shown else graph.output_tensors(i).tolist():
            last = max((place.get(c, k) for c in graph.tensor_consumers(e).tolist()), default=k)
            change[k] += graph.tensor_bytes[e] if last > k else 0
            change[last] -= graph.tensor_bytes[e] if last > k else 0
    crossing = np.cumsum(change)[:-1]
    done = np.cumsum(work) / max(float(work.sum()), 1e-300)
    cuts = []
    for k in range(1, ranges):
        off = np.abs(done - k / ranges)
        near = off <= off_equal / ranges
        near[off.argmin()] = True
        cuts.append(int(np.lexsort((off, np.where(near, crossing, np.inf)))[0]))
    stage: IntArray = np.searchsorted(np.array(cuts), np.arange(len(inside)), side="left")
    return stage


def _readers(graph: OperatorGraph, i: int) -> Iterator[int]:
    """Of tensors that are sent: an update waits for the readers of its weight as well."""
    for e in graph.output_tensors(i).tolist():
        if graph.tensor_bytes[e] > 0:
            yield from graph.tensor_consumers(e).tolist()
