"""Finds the layers of a step in micro-batches: how far along the model each operator works.

The forward half says the order. Of the backward half and of the updates, each operator belongs to
the layer whose weights or results it reads, or whose gradient it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.engines.units import unit_sums
from placewire.optimizer.graph.halves import forward_half
from placewire.optimizer.graph.operator_graph import TUPLE_ITEM, UPDATE, OperatorGraph
from placewire.optimizer.kernels.graphs.heads import joined_units
from placewire.optimizer.reductions.written_updates import MergedUpdates, merged_updates

# A weight belongs to one layer if its readers lie within this part of the forward half.
_ONE_LAYER = 1 / 32
# Operators with at most this part of the step's work together can leave their place for a weight.
_LIGHT = 1 / 100
# By what part of a range's share its ends may be off, to lie where the fewest bytes cross.
_OFF_EQUAL = 0.5


def layers_of(
    graph: OperatorGraph, unit: IntArray, work: FloatArray, *, ties: bool = True
) -> FloatArray | None:
    """float64[n]: the part of the model's work that lies before the middle of each operator's
    layer, the same for its copies in all micro-batches; None where micro-batches are no copies, or
    the graph does not say which operator makes the loss.

    unit int64[n]: operators with the same number stay together. work float64[n]. ties: whether what
    little the first layers do with a weight of the last ones belongs to these.
    """
    merged = merged_updates(graph)
    if merged is not None:
        of_merged = _units_of_merged(unit, merged)
        work_of_merged = unit_sums(merged.group, work)
        of_each = layers_of(merged.graph, of_merged, work_of_merged, ties=ties)
        return None if of_each is None else of_each[merged.group]
    copies, forward = _copies(graph), forward_half(graph)
    if copies is None or forward is None:
        return None
    count = int(copies.max(initial=-1)) + 1
    first = np.full(int(unit.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[unit[::-1]] = copies[::-1]
    joined = joined_units(np.arange(count), first[unit], copies, count)
    _, group = np.unique(joined[copies], return_inverse=True)
    known = graph.micro_batch <= 0
    place = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(
        place, group[known], _Places(graph, forward, work, ties=ties).of_operators()[known]
    )
    level, at = np.unique(place, return_inverse=True)
    sums = np.bincount(at, unit_sums(group, work), len(level))
    middle = (np.cumsum(sums) - sums / 2) / max(float(sums.sum()), 1e-300)
    layers: FloatArray = middle[at[group]]
    return layers


def _units_of_merged(unit: IntArray, merged: MergedUpdates) -> IntArray:
    """The units of the merged graph's operators; those that one of them was in become one."""
    count = int(unit.max(initial=-1)) + 1
    first = np.zeros(merged.graph.operator_count, dtype=np.int64)
    first[merged.group[::-1]] = np.arange(len(unit))[::-1]
    joined = joined_units(unit, np.arange(len(unit)), first[merged.group], count)
    return joined[first]


class _Places:
    """Finds where each operator stands along the forward half of the first micro-batch, which
    stands for all.

    An operator is common if it depends on no micro-batch, as a weight does, or reads only common
    operators, as the weight's transpose does, or the join of its shards.

    A weight that both ends of a model read, as an embedding that is the head, too, belongs to the
    later end, and so does what the other end does with it, if that is little: its results are less
    to send than the weight and its gradients.
    """

    def __init__(
        self, graph: OperatorGraph, forward: BoolArray, work: FloatArray, *, ties: bool
    ) -> None:
        self.ties = ties
        self.graph, self.forward = graph, forward.tolist()
        self.work, self.light = work, _LIGHT * float(work[graph.micro_batch <= 0].sum())
        self.part = graph.micro_batch.tolist()
        order = graph.topological_order
        self.order = order[graph.micro_batch[order] <= 0].tolist()
        self.makers = {i: self._makers(i) for i in self.order}
        self.readers = {i: list(self._readers(i)) for i in self.order}
        self.common = set[int]()
        for i in self.order:
            alone = not self.makers[i] and self.part[i] == 0
            waits = len(self.makers[i]) < len(graph.input_tensors(i))
            if not alone and not waits and all(j in self.common for j in self.makers[i]):
                self.common.add(i)
        self.place = dict[int, int]()
        # By common operator the last place that reads it.
        self.last = dict[int, int]()
        # Places of weights that belong to the later end.
        self.tied = set[int]()

    def _makers(self, i: int) -> list[int]:
        made = self.graph.tensor_producer[self.graph.input_tensors(i)].tolist()
        return [j for j in made if self.part[j] <= 0]

    def _readers(self, i: int) -> Iterator[int]:
        """The operators that read what i makes. An update that only waits for the readers of its
        weight, which is a tensor of 0 bytes, is none of them."""
        graph = self.graph
        for e in graph.output_tensors(i).tolist():
            for c in graph.tensor_consumers(e).tolist():
                sent = graph.tensor_bytes[e] > 0 or graph.types[c] == TUPLE_ITEM
                if sent and self.part[c] <= 0:
                    yield c

    def of_operators(self) -> IntArray:
        """int64[n]; of operators of the first micro-batch, and of none."""
        active = [
            i for i in self.order
            if self.forward[i] and self.part[i] == 0 and i not in self.common and self.makers[i]
        ]  # fmt: skip
        self.place = {i: k for k, i in enumerate(active)}
        self.end = max(len(active) - 1, 0)
        self._where_read()
        gradient = self._of_gradients()
        for i in self.order:
            if i not in self.place and i in self.common:
                self._as_made(i)
            elif i not in self.place and self.part[i] == 0:
                self.place[i] = self._backward(i, gradient)
            elif i not in self.place:
                self.place[i] = gradient[i] if i in gradient else self._as_largest(i)
        for i in reversed(self.order):
            if i not in self.place:
                self.place[i] = self._first(self.readers[i])
        found = np.zeros(self.graph.operator_count, dtype=np.int64)
        found[list(self.place)] = list(self.place.values())
        return found

    def _first(self, operators: Iterable[int]) -> int:
        return min((self.place[i] for i in operators if i in self.place), default=0)

    def _where_read(self) -> None:
        """Weights, inputs and constants are where the forward half reads them first."""
        for i in reversed(self.order):
            if i in self.place or not (self.forward[i] or i in self.common):
                continue
            read = [c for c in self.readers[i] if c in self.place and self.forward[c]]
            if read:
                self.place[i] = min(self.place[c] for c in read)
                self.last[i] = max(self.last.get(c, self.place[c]) for c in read)
                if self.ties and i in self.common and self._layer_of(i) is None:
                    self._tie(i, read)

    def _tie(self, weight: int, read: Iterable[int]) -> None:
        late = self.last[weight]
        early = [c for c in read if late - self.place[c] > self.end * _ONE_LAYER]
        sent = 2 * sum(self._bytes(c) for c in early)
        little = sum(float(self.work[c]) for c in early) <= self.light
        if little and sent < self._bytes(weight) and not self.common.intersection(early):
            self.tied.add(late)
            self.place |= dict.fromkeys((weight, *early), late)

    def _bytes(self, i: int) -> int:
        return int(self.graph.tensor_bytes[self.graph.output_tensors(i)].max(initial=0))

    def _as_made(self, i: int) -> None:
        """Places a common operator that only the backward half reads, like another transpose."""
        made = [j for j in self.makers[i] if j in self.place]
        if made:
            self.place[i] = max(self.place[j] for j in made)
            self.last[i] = max(self.last[j] for j in made)

    def _layer_of(self, common: int) -> int | None:
        """None where it belongs to no one layer."""
        if common not in self.place:
            return None
        near = self.last[common] - self.place[common] <= self.end * _ONE_LAYER
        return self.place[common] if near else None

    def _weights(self, i: int) -> list[int]:
        layers = (self._layer_of(j) for j in self.makers[i] if j in self.common)
        return [layer for layer in layers if layer is not None]

    def _of_gradients(self) -> dict[int, int]:
        """The layer of each update, and of what is made for one layer's updates alone."""
        found = dict[int, int]()
        for i in reversed(self.order):
            if i in self.common or self.forward[i]:
                continue
            if self.graph.types[i] == UPDATE:
                layers = self._weights(i)
            else:
                # A gradient is one of its weight, whatever else reads it.
                readers = self.readers[i]
                layers = [found[c] for c in readers if self.part[c] < 0 and c in found]
                if not layers and all(c in found for c in readers):
                    layers = [found[c] for c in readers]
            if layers and max(layers) - min(layers) <= self.end * _ONE_LAYER:
                found[i] = max(layers)
        return found

    def _backward(self, i: int, gradient: dict[int, int]) -> int:
        if gradient.get(i) in self.tied:
            return gradient[i]
        made = [j for j in self.makers[i] if self.part[j] == 0 and j not in self.common]
        known = self._weights(i)
        if not known:
            known = [self.place[j] for j in made if self.forward[j] and self.makers[j]]
            known += [gradient[i]] if i in gradient else []
        latest = min((self.place[j] for j in made if not self.forward[j]), default=self.end)
        return min(max(known), latest) if known else latest

    def _as_largest(self, i: int) -> int:
        """Where the largest of what it reads is made."""
        graph = self.graph
        tensors = [e for e in graph.input_tensors(i) if int(graph.tensor_producer[e]) in self.place]
        if not tensors:
            return 0
        most = max(tensors, key=lambda e: int(graph.tensor_bytes[e]))
        return self.place[int(graph.tensor_producer[most])]


def _copies(graph: OperatorGraph) -> IntArray | None:
    """int64[n]: the same number for the copies of one operator in all micro-batches, another for
    each operator of none; None where micro-batches differ in the order of the recorded sort."""
    order, part = graph.topological_order, graph.micro_batch
    members = [order[part[order] == k] for k in range(int(part.max(initial=-1)) + 1)]
    _, kind = np.unique(graph.types, return_inverse=True)
    number = np.empty(graph.operator_count, dtype=np.int64)
    for inside in members:
        if len(inside) != len(members[0]) or (kind[inside] != kind[members[0]]).any():
            return None
        number[inside] = np.arange(len(inside))
    shared = np.flatnonzero(part < 0)
    number[shared] = np.arange(len(shared)) + (len(members[0]) if members else 0)
    return number


def work_and_weights(graph: OperatorGraph, work: FloatArray) -> FloatArray:
    """float64[n]: each operator's part of both, which count alike, so that an embedding, which has
    weights and no work, can be a range of its own."""
    weight = graph.weight_bytes
    share: FloatArray = work / max(float(work.sum()), 1e-300)
    return share + weight / max(float(weight.sum()), 1.0)


def ranges_of(
    graph: OperatorGraph,
    layer: FloatArray,
    share: FloatArray,
    most: int,
    off_equal: float = _OFF_EQUAL,
) -> IntArray:
    """int64[n]: which of at most so many ranges of layers, numbered along the model, each operator
    is in. layer float64[n], as layers_of() gives it. The ranges have about equal sums of share
    float64[n]; each ends where the fewest bytes of a micro-batch cross, at most off_equal of an
    equal sum away."""
    level, at = np.unique(layer, return_inverse=True)
    of_level = np.bincount(at, share, len(level))
    done = np.cumsum(of_level)[:-1] / max(float(of_level.sum()), 1e-300)
    crossing = crossing_bytes(graph, at, len(level))[:-1]
    targets = range(1, most if len(done) else 0)
    cuts = {narrow_end(done, crossing, k / most, off_equal / most) for k in targets}
    found: IntArray = np.searchsorted(np.array(sorted(cuts)), at, side="left")
    return found.astype(np.int64)


def narrow_end(ends: FloatArray, crossing: FloatArray, share: float, off: float) -> int:
    """The index of that end which the fewest bytes cross, of those at most `off` from the share,
    the last one before it, and the first one after it; the nearest one where off is 0. ends, which
    rise, and crossing: float64[k] each, k > 0."""
    away = np.abs(ends - share)
    near = away <= off
    near[away.argmin()] = True
    if off > 0.0:
        after = min(int(np.searchsorted(ends, share)), len(ends) - 1)
        near[max(after - 1, 0) : after + 1] = True
    return int(np.lexsort((away, np.where(near, crossing, np.inf)))[0])


def crossing_bytes(graph: OperatorGraph, level: IntArray, count: int) -> FloatArray:
    """float64[count]: of the first micro-batch's tensors, the bytes that one level and those before
    it send to the levels after it, or receive from them."""
    source, target, tensor = graph.edges
    inside = (graph.micro_batch[source] == 0) & (graph.micro_batch[target] == 0)
    source, target, tensor = source[inside], target[inside], tensor[inside]
    low, high = np.full(graph.tensor_count, count), np.full(graph.tensor_count, -1)
    for end in (source, target):
        np.minimum.at(low, tensor, level[end])
        np.maximum.at(high, tensor, level[end])
    sent = np.flatnonzero(low < high)
    change = np.zeros(count + 1)
    np.add.at(change, low[sent], graph.tensor_bytes[sent])
    np.subtract.at(change, high[sent], graph.tensor_bytes[sent])
    return np.cumsum(change)[:-1]
