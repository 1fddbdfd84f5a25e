"""Two towers that recommend items to users, on synthetic choices.

Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019),
sections 3 and 4, without the correction: one network for the user and one for the item, which share
the items' embedding; the loss tells a user's item from all other items of the batch. The towers
meet only in the loss, so that they can run at the same time; most memory is in embeddings. 21
million parameters.

    training_step          as above
    training_step_small    200 users and 100 items, for quick trials
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from placewire.examples.models.data import HISTORY, KINDS, choices, step_on
from placewire.optimizer.capture.protocol import TrainingStep


@dataclass(frozen=True)
class Sizes:
    """hidden: widths of a tower's inner layers. width: that of its result."""

    users: int = 100_000
    items: int = 50_000
    width: int = 128
    hidden: tuple[int, ...] = (1024, 512)
    dropout: float = 0.1


SMALL = Sizes(users=200, items=100, width=16, hidden=(32, 16))

# Similarities are divided by this before the softmax (section 4.2).
TEMPERATURE = 0.1


class Tower(nn.Sequential):
    """float[batch, parts * width] -> float[batch, width]"""

    def __init__(self, parts: int, sizes: Sizes) -> None:
        layers: list[nn.Module] = []
        width = parts * sizes.width
        for hidden in sizes.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(sizes.dropout)]
            width = hidden
        super().__init__(*layers, nn.Linear(width, sizes.width))


class TwoTowers(nn.Module):
    """user int64[batch, 1 + HISTORY] (the user, then items taken before), item int64[batch, 2] (the
    item, then its kind) -> the loss: a scalar"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.user = nn.Embedding(sizes.users, sizes.width)
        self.item = nn.Embedding(sizes.items, sizes.width)
        self.kind = nn.Embedding(KINDS, sizes.width)
        self.user_tower = Tower(1 + HISTORY, sizes)
        self.item_tower = Tower(2, sizes)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        who = torch.cat([self.user(user[:, 0]), self.item(user[:, 1:]).flatten(1)], dim=1)
        what = torch.cat([self.item(item[:, 0]), self.kind(item[:, 1])], dim=1)
        one = functional.normalize(self.user_tower(who), dim=1)
        other = functional.normalize(self.item_tower(what), dim=1)
        similarities = one @ other.t() / TEMPERATURE
        return functional.cross_entropy(similarities, torch.arange(len(user), device=user.device))


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes())


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    return step_on(choices(batch, seed, sizes.users, sizes.items), TwoTowers(sizes), loss=None)
