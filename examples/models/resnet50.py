"""ResNet-50 for ImageNet shapes (3 x 224 x 224, 1,000 classes), on synthetic data.

He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition (2016), table 1: a stem and
four stages of bottlenecks. A stage halves the image in its first 3 x 3 convolution, as is usual
now (in the paper: in the 1 x 1 before it). 25.6 million parameters.

    training_step          ResNet-50
    training_step_small    one or two bottlenecks a stage, an eighth of the widths, 10 classes of
                           images of 32 x 32, for quick trials
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from placewire.examples.models.data import images, step_on
from placewire.examples.models.parts import he_initial_values
from placewire.optimizer.capture.protocol import TrainingStep

# A bottleneck has four times as many output channels as its 3 x 3 convolution.
EXPANSION = 4


@dataclass(frozen=True)
class Sizes:
    """blocks: bottlenecks of each stage. width: channels of the stem and of the first stage."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    side: int = 224


SMALL = Sizes(blocks=(1, 2, 1, 1), width=8, classes=10, side=32)


class Bottleneck(nn.Module):
    """float[batch, channels, side, side] -> float[batch, 4 width, side / stride, side / stride]"""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.convolution = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.convolution_norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, EXPANSION * width, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(EXPANSION * width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != EXPANSION * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, EXPANSION * width, 1, stride, bias=False),
                nn.BatchNorm2d(EXPANSION * width),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.reduce_norm(self.reduce(x)), inplace=True)
        y = functional.relu(self.convolution_norm(self.convolution(y)), inplace=True)
        return functional.relu(self.expand_norm(self.expand(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """float[batch, 3, side, side] -> logits float[batch, classes]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, sizes.width, kernel_size=7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(sizes.width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        channels = sizes.width
        for stage, count in enumerate(sizes.blocks):
            width = sizes.width << stage
            for block in range(count):
                stride = 2 if stage and not block else 1
                stages.append(Bottleneck(channels, width, stride))
                channels = EXPANSION * width
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, sizes.classes)
        self.apply(he_initial_values)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.adaptive_avg_pool2d(self.stages(self.stem(images)), 1)
        logits: torch.Tensor = self.classifier(x.flatten(1))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes())


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = images(batch, seed, sizes.classes, sizes.side)
    return step_on(data, ResNet(sizes), nn.CrossEntropyLoss())
