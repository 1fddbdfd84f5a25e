"""Inception-v3 for ImageNet shapes (3 x 299 x 299, 1,000 classes), on synthetic data.

Szegedy et al., Rethinking the Inception Architecture for Computer Vision (2016), section 6 and
figures 5, 6, 7 and 10, in the widths of the published implementation; with the auxiliary classifier
of section 4, whose loss has weight 0.4 (Going Deeper with Convolutions, 2015, section 5). 27.2
million parameters, 23.8 million without the auxiliary classifier.

    training_step             Inception-v3
    training_step_one_loss    without the auxiliary classifier
    training_step_small       one block of each kind, an eighth of the widths, 10 classes of images
                              of 75 x 75, for quick trials
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from placewire.examples.models.data import images, step_on
from placewire.examples.models.inception_blocks import (
    Convolution,
    FactorisedBlock,
    GridReduction,
    LastGridReduction,
    SquareBlock,
    WideBlock,
)
from placewire.optimizer.capture.protocol import TrainingStep


@dataclass(frozen=True)
class Sizes:
    """squares: channels after the pooling of each SquareBlock. factorised: inner channels of each
    FactorisedBlock. shrink: divides all widths.

    auxiliary: side and stride of the auxiliary classifier's pooling, and the side of its result;
    empty for none.
    """

    squares: tuple[int, ...] = (32, 64, 64)
    factorised: tuple[int, ...] = (128, 160, 160, 192)
    wide: int = 2
    auxiliary: tuple[int, ...] = (5, 3, 5)
    shrink: int = 1
    classes: int = 1000
    side: int = 299
    dropout: float = 0.5


SMALL = Sizes(
    squares=(32,), factorised=(128,), wide=1, auxiliary=(3, 3, 1), shrink=8, classes=10, side=75
)


class Inception(nn.Module):
    """float[batch, 3, side, side] -> logits float[batch, classes], and the logits of the auxiliary
    classifier where there is one"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        k = sizes.shrink
        self.stem = nn.Sequential(
            Convolution(3, 32 // k, 3, stride=2),
            Convolution(32 // k, 32 // k, 3),
            Convolution(32 // k, 64 // k, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            Convolution(64 // k, 80 // k, 1),
            Convolution(80 // k, 192 // k, 3),
            nn.MaxPool2d(3, stride=2),
        )
        blocks: list[nn.Module] = []
        channels = 192 // k
        for pooled in sizes.squares:
            blocks.append(SquareBlock(channels, pooled // k, k))
            channels = (64 + 64 + 96 + pooled) // k
        blocks.append(GridReduction(channels, k))
        channels += (384 + 96) // k
        for inner in sizes.factorised:
            blocks.append(FactorisedBlock(channels, inner // k, k))
            channels = 4 * 192 // k
        self.first = nn.Sequential(*blocks)
        self.auxiliary = Auxiliary(channels, sizes) if sizes.auxiliary else None
        blocks = [LastGridReduction(channels, k)]
        channels += (320 + 192) // k
        for _ in range(sizes.wide):
            blocks.append(WideBlock(channels, k))
            channels = (320 + 768 + 768 + 192) // k
        self.last = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(sizes.dropout)
        self.classifier = nn.Linear(channels, sizes.classes)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(self.stem(images))
        pooled = functional.adaptive_avg_pool2d(self.last(x), 1).flatten(1)
        logits: torch.Tensor = self.classifier(self.dropout(pooled))
        return (logits,) if self.auxiliary is None else (logits, self.auxiliary(x))


class Auxiliary(nn.Sequential):
    """float[batch, channels, side, side] -> logits float[batch, classes]"""

    def __init__(self, channels: int, sizes: Sizes) -> None:
        pooled, stride, left = sizes.auxiliary
        super().__init__(
            nn.AvgPool2d(pooled, stride),
            Convolution(channels, 128 // sizes.shrink, 1),
            Convolution(128 // sizes.shrink, 768 // sizes.shrink, left),
            nn.Flatten(),
            nn.Linear(768 // sizes.shrink, sizes.classes),
        )


class LossOfAll(nn.Module):
    """Cross-entropy of the first logits plus 0.4 times that of the auxiliary classifier's."""

    def forward(self, outputs: tuple[torch.Tensor, ...], targets: torch.Tensor) -> torch.Tensor:
        first, *others = (functional.cross_entropy(logits, targets) for logits in outputs)
        return first + 0.4 * others[0] if others else first


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes())


def training_step_one_loss(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes(auxiliary=()))


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = images(batch, seed, sizes.classes, sizes.side)
    return step_on(data, Inception(sizes), LossOfAll())
