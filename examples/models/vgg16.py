"""VGG16 for CIFAR-10 shapes (3 x 32 x 32), on synthetic data.

Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition (2015),
configuration D: thirteen convolutions and three linear layers. With small images the features end
at 512 x 1 x 1, so that the classifier's first layer reads 512 values. 33.6 million parameters.

    training_step               as published
    training_step_batch_norm    with batch normalisation after each convolution
    training_step_small         an eighth of the widths, for quick trials
"""

from __future__ import annotations

import torch
from torch import nn

from placewire.examples.models.data import images, step_on
from placewire.examples.models.parts import he_initial_values
from placewire.optimizer.capture.protocol import TrainingStep

# Output channels of each convolution; 0 stands for a pooling that halves the image.
WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
HIDDEN = 4096
CLASSES = 10


class Vgg16(nn.Module):
    """float[batch, 3, 32, 32] -> logits float[batch, 10]; all widths are divided by `shrink`."""

    def __init__(self, batch_norm: bool, dropout: float, shrink: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in WIDTHS:
            if not width:
                layers.append(nn.MaxPool2d(2))
                continue
            layers.append(nn.Conv2d(channels, width // shrink, kernel_size=3, padding=1))
            channels = width // shrink
            if batch_norm:
                layers.append(nn.BatchNorm2d(channels))
            layers.append(nn.ReLU())
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels, HIDDEN // shrink),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(HIDDEN // shrink, HIDDEN // shrink),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(HIDDEN // shrink, CLASSES),
        )
        self.apply(he_initial_values)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, batch_norm=False)


def training_step_batch_norm(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, batch_norm=True)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, batch_norm=True, shrink=8)


def step_of(
    batch: int, seed: int, batch_norm: bool, dropout: float = 0.5, shrink: int = 1
) -> TrainingStep:
    model = Vgg16(batch_norm, dropout, shrink)
    return step_on(images(batch, seed), model, nn.CrossEntropyLoss())
