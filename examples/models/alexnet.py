"""AlexNet for CIFAR-10 shapes (3 x 32 x 32), on synthetic data.

Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks
(2012), in the single-tower widths 64-192-384-256-256, with strides and kernels that fit small
images. About 23 million parameters, of which 21 million are in the classifier.

    training_step          as above
    training_step_small    an eighth of the widths, for quick trials
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.examples.models.data import images, step_on
from placewire.examples.models.parts import he_initial_values
from placewire.optimizer.capture.protocol import TrainingStep

# Output channels of the convolutions (the last two have as many), and of the classifier's layers.
WIDTHS = (64, 192, 384, 256)
HIDDEN = 4096


class AlexNet(nn.Module):
    """float[batch, 3, 32, 32] -> logits float[batch, 10]; all widths are divided by `shrink`."""

    def __init__(self, shrink: int = 1, dropout: float = 0.5) -> None:
        super().__init__()
        first, second, third, last = (width // shrink for width in WIDTHS)
        hidden = HIDDEN // shrink
        self.features = nn.Sequential(
            nn.Conv2d(3, first, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(second, third, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(third, last, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(last, last, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(last * 2 * 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        )
        self.apply(he_initial_values)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, shrink=1)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, shrink=8)


def step_of(batch: int, seed: int, shrink: int, dropout: float = 0.5) -> TrainingStep:
    return step_on(images(batch, seed), AlexNet(shrink, dropout), nn.CrossEntropyLoss())
