"""A network that turns pictures with depth into holograms, on synthetic data.

It is like the network of Shi, Li, Kim, Kellnhofer and Matusik, Towards Real-Time Photorealistic 3D
Holography with Deep Neural Networks (2021), with which Celeritas is measured (section 6.2.1): 30
convolutions of 24 filters, here of 3 x 3, each with normalisation and ReLU, and a residual
connection around every two of them; the last gives amplitude and phase of three colours. Pictures
have 384 x 384 points, with which a batch of 16 has about the 30 GB of activations that Celeritas
reports. 150 thousand parameters: small in weights, large in memory.

    training_step          as above
    training_step_small    6 convolutions of 8 filters, pictures of 16 x 16, for quick trials
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from placewire.examples.models.data import holograms, step_on
from placewire.examples.models.parts import he_initial_values
from placewire.optimizer.capture.protocol import TrainingStep


@dataclass(frozen=True)
class Sizes:
    """convolutions: an even number, which includes the first and the last."""

    convolutions: int = 30
    filters: int = 24
    side: int = 384


SMALL = Sizes(convolutions=6, filters=8, side=16)

# Input channels: colours and depth. Output channels: amplitude and phase of each colour.
GIVEN, WANTED = 4, 6


class Normalised(nn.Sequential):
    def __init__(self, given: int, filters: int) -> None:
        super().__init__(
            nn.Conv2d(given, filters, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
        )


class Pair(nn.Module):
    """float[batch, filters, side, side] -> the same: two convolutions, added to their input."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.first = Normalised(filters, filters)
        self.second = Normalised(filters, filters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(x))  # type: ignore[no-any-return]


class Holography(nn.Sequential):
    """float[batch, 4, side, side] -> float[batch, 6, side, side]"""

    def __init__(self, sizes: Sizes) -> None:
        pairs = (sizes.convolutions - 2) // 2
        super().__init__(
            Normalised(GIVEN, sizes.filters),
            *(Pair(sizes.filters) for _ in range(pairs)),
            nn.Conv2d(sizes.filters, WANTED, kernel_size=3, padding=1),
        )
        self.apply(he_initial_values)


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes())


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    return step_on(holograms(batch, seed, sizes.side), Holography(sizes), nn.MSELoss())
