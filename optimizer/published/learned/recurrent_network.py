"""The networks of ColocRL and of the hierarchical planner: one that groups nodes, feed-forward, and
one that places groups one after the other, sequence-to-sequence.

In shapes, T is the placements taken at once, N the nodes, G the groups, F the features of a node, H
the hidden length, D the devices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from placewire.optimizer.published.learned.layers import perceptron
from placewire.optimizer.published.learned.settings import RecurrentSettings


class RecurrentPolicy(nn.Module):
    """grouper: float[N, inputs] -> float[N, G]; None where each node is a group of its own."""

    def __init__(
        self, features: int, groups: int, devices: int, inputs: int, settings: RecurrentSettings
    ) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden
        self.grouper = perceptron(inputs, hidden, groups, 2) if settings.groups else None
        self.placer = SequencePlacer(features + groups, devices, hidden)


class SequencePlacer(nn.Module):
    """An encoder reads all groups; a decoder gives one group after the other its device, with the
    device of the group before, and with content-based attention on all that the encoder read."""

    def __init__(self, columns: int, devices: int, hidden: int) -> None:
        super().__init__()
        self.into = nn.Linear(columns, hidden)
        self.encoder = nn.LSTM(hidden, hidden)
        # The last row stands for the group before the first.
        self.device = nn.Embedding(devices + 1, hidden)
        self.decoder = nn.LSTMCell(2 * hidden, hidden)
        self.out = nn.Linear(2 * hidden, devices)

    def forward(
        self,
        described: Tensor,
        able: Tensor,
        choice: Tensor | None,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """described float[G, T, F + G]; able bool[G, T, D]. Returns the devices int64[G, T] and the
        logarithms of their chances, float[G, T]. The devices are `choice`; without it they are
        drawn by the generator; without that, too, they are the likeliest."""
        read, (hidden, cell) = self.encoder(torch.relu(self.into(described)))
        state, memory = (hidden[0], cell[0]), read.permute(1, 0, 2)
        groups, placements, _ = able.shape
        before = torch.full((placements,), self.device.num_embeddings - 1)
        devices, chances = [], []
        for k in range(groups):
            state = self.decoder(torch.cat([self.device(before), read[k]], dim=1), state)
            logits = self.out(torch.cat([state[0], attended(memory, state[0])], dim=1))
            logs = torch.log_softmax(logits.masked_fill(~able[k], -math.inf), dim=1)
            if choice is not None:
                before = choice[k]
            elif generator is not None:
                before = torch.multinomial(logs.exp(), 1, generator=generator).squeeze(1)
            else:
                before = logs.argmax(dim=1)
            devices.append(before)
            chances.append(logs.gather(1, before[:, None]).squeeze(1))
        return torch.stack(devices), torch.stack(chances)


def attended(memory: Tensor, state: Tensor) -> Tensor:
    """float[T, H]: the mean of memory float[T, L, H], weighted by the softmax of each element's
    product with the state float[T, H]."""
    likeness = (memory @ state[:, :, None]).squeeze(2) / math.sqrt(state.shape[1])
    found: Tensor = (torch.softmax(likeness, dim=1)[:, None] @ memory).squeeze(1)
    return found


def described_groups(
    features: Tensor, source: Tensor, target: Tensor, group: Tensor, count: int
) -> Tensor:
    """float[G, T, F + G]: of each group log(1 + the sum of its nodes' features float[N, F]), and 1
    for every other group that it sends to or hears from. source, target int64[E]: nodes; group
    int64[T, N]."""
    placements = len(group)
    which = torch.arange(placements)[:, None]
    flat = (group + count * which).reshape(-1)
    total = torch.zeros(placements * count, features.shape[1])
    total.index_add_(0, flat, features.repeat(placements, 1))
    linked = torch.zeros(placements, count, count)
    linked[which, group[:, source], group[:, target]] = 1.0
    linked[which, group[:, target], group[:, source]] = 1.0
    torch.diagonal(linked, dim1=1, dim2=2).zero_()
    rows = torch.cat([torch.log1p(total).reshape(placements, count, -1), linked], dim=2)
    return rows.permute(1, 0, 2)
