"""HSDAG's networks, which embed nodes, score edges, pool groups and choose devices.

In shapes, N is the nodes of a graph, or of several graphs beside each other without an edge between
them, H the hidden channel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from placewire.optimizer.published.learned.layers import perceptron, sparse
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
        """float[N, columns] -> float[N, H]"""
        return renewed(torch.relu(self.transform(features)))

    def embed(self, state: Tensor, adjacency: Tensor) -> Tensor:
        """Equation (6) once per layer, with the activation after the last one too (act_final), on
        state float[N, H]; adjacency: sparse [N, N]."""
        for convolution in self.convolutions:
            state = torch.relu(torch.sparse.mm(adjacency, convolution(state)))
        return state

    def score(self, embedded: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Equation (7): the scores float[E], within 0..1, of edges int64[E]. Nodes without an edge
        between them have no score, which is the product with A."""
        both = embedded[source] * embedded[target]
        scores: Tensor = torch.sigmoid(self.edge_score(both).squeeze(-1))
        return scores


def normalised_adjacency(source: Tensor, target: Tensor, count: int) -> Tensor:
    """Sparse float[N, N]: D^-1/2 (A + I) D^-1/2 of (6), with A's edges int64[E] in both directions
    as in the neighbourhood of (15)."""
    loops = torch.arange(count)
    rows, columns = torch.cat([source, target, loops]), torch.cat([target, source, loops])
    # Two nodes that send to each other are joined by one edge.
    pairs = torch.unique(rows * max(count, 1) + columns)
    rows, columns = pairs // max(count, 1), pairs % max(count, 1)
    scale = torch.bincount(rows, minlength=count).to(torch.float32).rsqrt()
    return sparse(torch.stack([rows, columns]), scale[rows] * scale[columns], count)


def pooled(embedded: Tensor, weight: Tensor, group: Tensor, count: int) -> Tensor:
    """float[count, H]: the weighted mean of the embeddings float[N, H] in each group. weight
    float[N]: the score of each node's strongest edge, which is learned through it; group
    int64[N]: numbers 0..count - 1."""
    weighted = embedded * weight[:, None]
    return averaged(weighted, group, count)


def averaged(values: Tensor, group: Tensor, count: int) -> Tensor:
    """float[count, H]: the mean of the values float[N, H] in each group int64[N]."""
    total = torch.zeros(count, values.shape[-1]).index_add(0, group, values)
    size = torch.bincount(group, minlength=count).clamp(min=1)
    return total / size[:, None]


def renewed(state: Tensor) -> Tensor:
    """Scales to a mean square of 1 per node; otherwise states would grow with every placement."""
    return state * (state.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
