"""Bundles: small tensors that one device sends others in one message each.

To the simulator a bundle is an operator of the sender that copies the tensors into one, which is
what is sent. So a step with bundles is a graph like any other. What goes to several devices is
copied once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.collector import collector_paused
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement

BUNDLE = "bundle"


@dataclass(frozen=True)
class Bundle:
    """tensors: at least two, sent in one message to each of the devices `destinations` (ascending),
    in the order in which the device `source` makes them."""

    source: int
    destinations: tuple[int, ...]
    tensors: tuple[int, ...]

    @property
    def turn(self) -> tuple[int, tuple[int, ...]]:
        """Bundles that could leave at the same time leave in this order. No two of a step have the
        same, because a tensor comes to a device once."""
        return min(self.tensors), self.destinations


def joined(bundles: Iterable[Bundle]) -> list[Bundle]:
    """One bundle for those of one device that have the same tensors in the same order."""
    found: dict[tuple[int, tuple[int, ...]], set[int]] = defaultdict(set)
    for one in bundles:
        found[one.source, one.tensors].update(one.destinations)
    return [
        Bundle(source, tuple(sorted(destinations)), tensors)
        for (source, tensors), destinations in found.items()
    ]


@dataclass(frozen=True)
class PlacedStep:
    """A graph, device int64[n], and the order of the operators on each device. The operators of
    bundles, if any, come after all others; tensors, too."""

    graph: OperatorGraph
    device: IntArray
    order: Sequence[Sequence[int]]

    @property
    def turns(self) -> IntArray:
        """int64[n]: where each operator stands in its device's order."""
        turn = np.empty(self.graph.operator_count, dtype=np.int64)
        for row in self.order:
            turn[list(row)] = np.arange(len(row))
        return turn


def bundles_of(graph: OperatorGraph, placement: Placement) -> list[Bundle]:
    """The bundles of a placement, whose names must exist."""
    number = {name: d for d, name in enumerate(placement.cluster.device_names)}
    return joined(
        Bundle(
            number[message.source],
            (number[message.destination],),
            tuple(
                int(graph.output_tensors(graph.index_of[sent.producer])[sent.output])
                for sent in message.tensors
            ),
        )
        for message in placement.messages
        if message.bundled
    )


@collector_paused()
def with_bundles(step: PlacedStep, bundles: Sequence[Bundle]) -> PlacedStep:
    """The step whose tensors travel in these bundles, of which no two bring one tensor to one
    device. A bundle comes right after the last of its tensors is made, with others by turn."""
    if not bundles:
        return step
    graph, n, m = step.graph, step.graph.operator_count, step.graph.tensor_count
    travels = {
        (e, destination): k
        for k, bundle in enumerate(bundles)
        for destination in bundle.destinations
        for e in bundle.tensors
    }
    starts, readers = graph.consumers_start.tolist(), graph.consumers.tolist()
    device = step.device.tolist()
    left: list[list[int]] = []
    brought: list[dict[int, None]] = [{} for _ in bundles]
    for e in range(m):
        here: list[int] = []
        for c in readers[starts[e] : starts[e + 1]]:
            k = travels.get((e, device[c]))
            if k is None:
                here.append(c)
            else:
                brought[k][c] = None
        left.append(here)
    for k, bundle in enumerate(bundles):
        for e in bundle.tensors:
            left[e].append(n + k)
    left += [list(one) for one in brought]
    made = graph.tensor_producer.tolist()
    sizes = [int(graph.tensor_bytes[list(bundle.tensors)].sum()) for bundle in bundles]
    count = len(bundles)
    names = [f"{BUNDLE} {k + 1} of {len(b.tensors)} tensors" for k, b in enumerate(bundles)]

    def more(array: IntArray, values: Sequence[int]) -> IntArray:
        return np.concatenate([array, np.array(values, dtype=np.int64)])

    zeros, none = [0] * count, [-1] * count
    bundled = replace(
        graph,
        ids=(*graph.ids, *names),
        types=(*graph.types, *[BUNDLE] * count),
        signatures=(*graph.signatures, *[""] * count),
        modules=(*graph.modules, *[""] * count),
        seconds=np.concatenate([graph.seconds, np.outer(sizes, graph.copy_seconds_per_byte)]),
        weight_bytes=more(graph.weight_bytes, zeros),
        activation_bytes=more(graph.activation_bytes, sizes),
        workspace_bytes=more(graph.workspace_bytes, zeros),
        flops=more(graph.flops, zeros),
        traffic_bytes=more(graph.traffic_bytes, zeros),
        colocation=more(graph.colocation, none),
        micro_batch=more(graph.micro_batch, none),
        tensor_producer=more(graph.tensor_producer, range(n, n + count)),
        tensor_bytes=more(graph.tensor_bytes, sizes),
        consumers_start=np.cumsum([0, *map(len, left)], dtype=np.int64),
        consumers=np.array([c for one in left for c in one], dtype=np.int64),
    )
    after: dict[int, list[int]] = defaultdict(list)
    turn = {i: k for row in step.order for k, i in enumerate(row)}
    for k, bundle in sorted(enumerate(bundles), key=lambda one: one[1].turn):
        after[max((made[e] for e in bundle.tensors), key=turn.__getitem__)].append(n + k)
    order = [[j for i in row for j in (i, *after.get(i, ()))] for row in step.order]
    on = [bundle.source for bundle in bundles]
    return PlacedStep(bundled, more(step.device, on), order)
