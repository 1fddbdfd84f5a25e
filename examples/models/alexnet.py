"""AlexNet for CIFAR-10 shapes (3 x 32 x 32), on synthetic data.

Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks
(2012), in the single-tower widths 64-192-384-256-256, with strides and kernels that fit small
images. About 23 million parameters, of which 21 million are in the classifier.
"""

from __future__ import annotations

import torch
from torch import nn

from optimizer.capture.protocol import Tensors, TrainingStep


class AlexNet(nn.Module):
    """float[batch, 3, 32, 32] -> logits float[batch, classes]"""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(256 * 2 * 2, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


def training_step(batch: int, seed: int) -> TrainingStep:
    def batches(step: int) -> Tensors:
        """Images of noise around a mean that depends on the class: there is something to learn."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        labels = torch.randint(0, 10, (batch,), generator=generator)
        images = torch.randn(batch, 3, 32, 32, generator=generator)
        return images + (labels.float() / 5 - 0.9).view(batch, 1, 1, 1), labels

    return TrainingStep(
        model=AlexNet(),
        example_inputs=batches(0),
        batches=batches,
        loss=nn.CrossEntropyLoss(),
    )
