"""Placeto's networks, which pass messages along the graph and choose the device of one node.

In shapes, T is the decisions taken at once, N the nodes, H the hidden length, D the devices.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.published.learned.layers import perceptron, sparse
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.learned.settings import PlacetoSettings

# A node's pools: the nodes before it, behind it, and beside it (on no path with it).
POOLS = 3


class PlacetoPolicy(nn.Module):
    def __init__(self, devices: int, settings: PlacetoSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden

        def several(count: int, inputs: int) -> nn.ModuleList:
            return nn.ModuleList(perceptron(inputs, hidden, hidden, 2) for _ in range(count))

        self.first = nn.Linear(2 * devices + 3, hidden)
        # The first of each is for messages from producers, the second for those from consumers.
        self.messages, self.updates = several(2, hidden), several(2, hidden)
        self.into_pool, self.out_of_pool = several(POOLS, 2 * hidden), several(POOLS, hidden)
        self.placer = perceptron((2 + POOLS) * hidden, hidden, devices, 2)

    def forward(
        self, features: Tensor, current: Tensor, heard: tuple[Tensor, Tensor], pools: Tensor
    ) -> Tensor:
        """The logits float[T, D] of the nodes current int64[T]. features float[T, N, 2 D + 3];
        heard: as of heard_from; pools float[T, POOLS, N], whose rows sum to 1 or 0."""
        begun = torch.relu(self.first(features))
        sides = []
        for message, update, adjacency in zip(self.messages, self.updates, heard, strict=True):
            state = begun
            for _ in range(self.settings.rounds):
                state = begun + update(spread(adjacency, message(state)))
            sides.append(state)
        embedded = torch.cat(sides, dim=-1)
        parts = [embedded[torch.arange(len(current)), current]]
        for k in range(POOLS):
            gathered = pools[:, k, None, :] @ self.into_pool[k](embedded)
            parts.append(self.out_of_pool[k](gathered.squeeze(1)))
        logits: Tensor = self.placer(torch.cat(parts, dim=-1))
        return logits


def spread(adjacency: Tensor, values: Tensor) -> Tensor:
    """float[T, N, H]: adjacency [N, N] @ values float[T, N, H] for every decision."""
    t, n, h = values.shape
    flat = values.permute(1, 0, 2).reshape(n, t * h)
    heard: Tensor = torch.sparse.mm(adjacency, flat)
    return heard.reshape(n, t, h).permute(1, 0, 2)


def heard_from(nodes: Nodes) -> tuple[Tensor, Tensor]:
    """Sparse float[N, N] twice: the mean over a node's producers, and over its consumers."""

    def mean(rows: IntArray, columns: IntArray) -> Tensor:
        values = 1.0 / np.bincount(rows, minlength=nodes.count)[rows]
        index = torch.from_numpy(np.stack([rows, columns]))
        return sparse(index, torch.from_numpy(values.astype(np.float32)), nodes.count)

    return mean(nodes.target, nodes.source), mean(nodes.source, nodes.target)


def before_and_behind(graph: OperatorGraph, nodes: Nodes) -> BoolArray:
    """bool[N, N]: row v marks the nodes before v, from an operator of which a path leads to one of
    v's. Column v marks the nodes behind v."""
    count = nodes.count
    node = nodes.of_operator.tolist()
    source, target, _ = graph.edges
    readers: list[list[int]] = [[] for _ in node]
    for i, j in zip(source.tolist(), target.tolist(), strict=True):
        readers[i].append(j)
    # Sets of nodes, as the bits of whole numbers: those before each operator, and before each node.
    above, merged = [0] * len(node), [0] * count
    for i in graph.topological_order.tolist():
        merged[node[i]] |= above[i]
        passed = above[i] | (1 << node[i])
        for j in readers[i]:
            above[j] |= passed
    size = -(-max(count, 1) // 8)
    packed = np.frombuffer(b"".join(one.to_bytes(size, "little") for one in merged), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(count, size), axis=1, bitorder="little")
    found = bits[:, :count].astype(np.bool_)
    np.fill_diagonal(found, False)
    return found


def pools_of(before: BoolArray) -> NDArray[np.float32]:
    """float32[N, POOLS, N]: weights of the means over the nodes before, behind and beside each."""
    beside = ~(before | before.T)
    np.fill_diagonal(beside, False)
    pools = np.stack([before, before.T, beside], axis=1).astype(np.float32)
    pools /= np.maximum(pools.sum(axis=2, keepdims=True), 1.0)
    return pools
