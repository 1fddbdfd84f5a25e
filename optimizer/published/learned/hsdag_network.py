"""HSDAG's networks, which embed nodes, score edges, pool groups and choose devices.

In shapes, T is the placements taken at once, N the nodes, H the hidden channel, D the devices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from placewire.optimizer.arrays import BoolArray
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.learned.settings import HsdagSettings


class HsdagPolicy(nn.Module):
    """Has no `forward`: groups are decided between `score` and `placer`, which gives logits."""

    def __init__(self, columns: int, devices: int, settings: HsdagSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden_channel
        self.transform = perceptron(columns, hidden, hidden, settings.layer_trans)
        self.convolutions = nn.ModuleList(
            nn.Linear(hidden, hidden, bias=False) for _ in range(settings.layer_gnn)
        )
        self.edge_score = perceptron(hidden, hidden, 1, settings.layer_parsingnet)
        self.placer = perceptron(hidden, hidden, devices, settings.layer_parsingnet)

    def first_state(self, features: Tensor) -> Tensor:
        """float[N, columns] -> float[1, N, H]"""
        state: Tensor = renewed(torch.relu(self.transform(features)))
        return state[None]

    def embed(self, state: Tensor, adjacency: Tensor) -> Tensor:
        """Equation (6) once per layer, with the activation after the last one too (act_final), on
        state float[T, N, H]; adjacency: sparse [N, N]."""
        for convolution in self.convolutions:
            state = torch.relu(spread(adjacency, convolution(state)))
        return state

    def score(self, embedded: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Equation (7): the scores float[T, E], within 0..1, of edges int64[..., E]."""
        one, other = (torch.take_along_dim(embedded, end[..., None], 1) for end in (source, target))
        scores: Tensor = torch.sigmoid(self.edge_score(one * other).squeeze(-1))
        return scores


def perceptron(inputs: int, hidden: int, outputs: int, layers: int) -> nn.Sequential:
    """Has a relu between its layers, none after the last."""
    sizes = [inputs, *[hidden] * (layers - 1), outputs]
    parts: list[nn.Module] = []
    for k in range(layers):
        parts += [nn.ReLU()] if k else []
        parts.append(nn.Linear(sizes[k], sizes[k + 1]))
    return nn.Sequential(*parts)


def normalised_adjacency(nodes: Nodes) -> Tensor:
    """Sparse float[N, N]: D^-1/2 (A + I) D^-1/2 of (6), with A's edges in both directions as in the
    neighbourhood of (15)."""
    n = nodes.count
    loops = torch.arange(n)
    source, target = torch.from_numpy(nodes.source), torch.from_numpy(nodes.target)
    rows, columns = torch.cat([source, target, loops]), torch.cat([target, source, loops])
    # Two nodes that send to each other are joined by one edge.
    pairs = torch.unique(rows * max(n, 1) + columns)
    rows, columns = pairs // max(n, 1), pairs % max(n, 1)
    scale = torch.bincount(rows, minlength=n).to(torch.float32).rsqrt()
    return sparse(torch.stack([rows, columns]), scale[rows] * scale[columns], n)


def sparse(index: Tensor, values: Tensor, count: int) -> Tensor:
    """float[count, count] with values at index int64[2, …]"""
    size = (count, count)
    return torch.sparse_coo_tensor(index, values, size, check_invariants=True).coalesce()


def spread(adjacency: Tensor, values: Tensor) -> Tensor:
    """float[T, N, H]: adjacency [N, N] @ values float[T, N, H] for every placement."""
    t, n, h = values.shape
    flat = values.permute(1, 0, 2).reshape(n, t * h)
    heard: Tensor = torch.sparse.mm(adjacency, flat)
    return heard.reshape(n, t, h).permute(1, 0, 2)


def pooled(embedded: Tensor, weight: Tensor, group: Tensor, count: int) -> Tensor:
    """float[count, H]: the weighted mean of the embeddings in each group. embedded float[T, N, H];
    weight float[T, N]: the score of each node's strongest edge, which is learned through it; group
    int64[T, N]: numbers 0..count - 1 over all placements."""
    flat, hidden = group.reshape(-1), embedded.shape[-1]
    weighted = (embedded * weight[..., None]).reshape(-1, hidden)
    total = torch.zeros(count, hidden).index_add(0, flat, weighted)
    size = torch.bincount(flat, minlength=count).clamp(min=1)
    return total / size[:, None]


def masked(logits: Tensor, able: BoolArray) -> Tensor:
    """float[G, D] with -inf where able bool[G, D] is False."""
    return logits.masked_fill(torch.from_numpy(~able), -math.inf)


def renewed(state: Tensor) -> Tensor:
    """Scales to a mean square of 1 per node; otherwise states would grow with every placement."""
    return state * (state.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
