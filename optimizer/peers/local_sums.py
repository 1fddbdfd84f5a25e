"""Gradients of a weight that two stages read are summed where they are made.

In a user's step each micro-batch adds both stages' gradients of a tied weight, so one stage would
have to send the other its part in every micro-batch. Under PyTorch each stage has the weight, adds
its own gradients up, and the two sums meet once in a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.graph.operator_graph import ADDITION, OperatorGraph
from placewire.optimizer.peers.step_parts import Gradient, StepParts


@dataclass(frozen=True)
class Staged:
    """graph, and int64[n] each: the stage, the device and the micro-batch of its operators."""

    graph: OperatorGraph
    stage: IntArray
    device: IntArray
    micro_batch: IntArray


def with_local_sums(step: Staged, parts: StepParts) -> Staged:
    """The same operators, in another order: the additions within micro-batches add up what the
    other stage makes, and that of the first micro-batch adds the two sums at last."""
    graph = step.graph
    stage, device, micro_batch = step.stage.copy(), step.device.copy(), step.micro_batch.copy()
    readers = dict[int, list[int]]()
    for gradient in parts.gradients:
        ends = _two_ends(graph, gradient, device)
        if ends is None:
            continue
        here, there = ends
        leaves, count = gradient.leaves, len(gradient.leaves)
        for m, leaf in enumerate(leaves):
            (total,) = graph.tensor_consumers(_sent(graph, leaf))
            for made, reader in ((here[m], int(total)), (there[m], leaves[max(m, 1)])):
                # Gradients of two weights may have a part in common.
                before = readers.get(_sent(graph, made), _read(graph, made))
                readers[_sent(graph, made)] = [*(c for c in before if c != leaf), reader]
            readers[_sent(graph, leaf)] = [leaves[(m + 1) % count]]
            stage[leaf], device[leaf] = stage[there[m]], device[there[m]]
        final = leaves[0]
        readers[_sent(graph, final)] = list(gradient.readers)
        readers[_sent(graph, gradient.root)] = [final]
        stage[final], device[final] = stage[gradient.root], device[gradient.root]
        micro_batch[final] = -1
    if not readers:
        return step
    rows = [readers.get(e, graph.tensor_consumers(e).tolist()) for e in range(graph.tensor_count)]
    part = np.where(micro_batch == step.micro_batch, graph.micro_batch, micro_batch)
    changed = replace(
        graph,
        micro_batch=part,
        consumers_start=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        consumers=np.array([c for row in rows for c in row], dtype=np.int64),
    )
    return Staged(changed, stage, device, micro_batch)


def _two_ends(
    graph: OperatorGraph, gradient: Gradient, device: IntArray
) -> tuple[list[int], list[int]] | None:
    """By micro-batch what is made where the sum is, and what is made elsewhere; None where the
    gradient has not one of each."""
    here, there = list[int](), list[int]()
    for m, leaf in enumerate(gradient.leaves):
        made = graph.tensor_producer[graph.input_tensors(leaf)].tolist()
        near = [i for i in made if device[i] == device[gradient.root]]
        far = [i for i in made if i not in near]
        inside = all(graph.micro_batch[i] == m for i in (leaf, *made))
        summed = graph.types[leaf] == ADDITION and len(_read(graph, leaf)) == 1
        alone = all(len(graph.output_tensors(i)) == 1 for i in (leaf, *made))
        if not (inside and summed and alone and len(near) == len(far) == 1):
            return None
        here += near
        there += far
    return here, there


def _sent(graph: OperatorGraph, i: int) -> int:
    return int(graph.output_tensors(i)[0])


def _read(graph: OperatorGraph, i: int) -> list[int]:
    found: list[int] = graph.tensor_consumers(_sent(graph, i)).tolist()
    return found
