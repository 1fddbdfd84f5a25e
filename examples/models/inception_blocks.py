"""The blocks of Inception-v3: convolutional branches that can run at the same time.

Szegedy et al., Rethinking the Inception Architecture for Computer Vision (2016). Every block maps
float[batch, channels, side, side] to the same form; `k` divides all widths.
"""

from __future__ import annotations

import torch
from torch import nn


class Convolution(nn.Sequential):
    """A convolution without bias, batch normalisation, ReLU."""

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__(
            nn.Conv2d(channels, width, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(width, eps=0.001),
            nn.ReLU(inplace=True),
        )


def row(channels: int, width: int, length: int) -> Convolution:
    """A convolution of 1 x length that keeps the side."""
    return Convolution(channels, width, (1, length), padding=(0, length // 2))


def column(channels: int, width: int, length: int) -> Convolution:
    """A convolution of length x 1 that keeps the side."""
    return Convolution(channels, width, (length, 1), padding=(length // 2, 0))


def pooled(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(3, stride=1, padding=1), Convolution(channels, width, kernel=1)
    )


class Branches(nn.Module):
    """Every branch reads the block's input; the outputs are joined by channel."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class SquareBlock(Branches):
    """Figure 5: two 3 x 3 convolutions instead of a 5 x 5 (which one branch keeps)."""

    def __init__(self, channels: int, width_pooled: int, k: int) -> None:
        super().__init__(
            Convolution(channels, 64 // k, 1),
            nn.Sequential(
                Convolution(channels, 48 // k, 1), Convolution(48 // k, 64 // k, 5, padding=2)
            ),
            nn.Sequential(
                Convolution(channels, 64 // k, 1),
                Convolution(64 // k, 96 // k, 3, padding=1),
                Convolution(96 // k, 96 // k, 3, padding=1),
            ),
            pooled(channels, width_pooled),
        )


class GridReduction(Branches):
    """Figure 10: halves the side without a bottleneck."""

    def __init__(self, channels: int, k: int) -> None:
        super().__init__(
            Convolution(channels, 384 // k, 3, stride=2),
            nn.Sequential(
                Convolution(channels, 64 // k, 1),
                Convolution(64 // k, 96 // k, 3, padding=1),
                Convolution(96 // k, 96 // k, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        )


class FactorisedBlock(Branches):
    """Figure 6: rows and columns of 7 instead of squares; `inner` channels between them."""

    def __init__(self, channels: int, inner: int, k: int) -> None:
        width = 192 // k
        super().__init__(
            Convolution(channels, width, 1),
            nn.Sequential(
                Convolution(channels, inner, 1), row(inner, inner, 7), column(inner, width, 7)
            ),
            nn.Sequential(
                Convolution(channels, inner, 1),
                column(inner, inner, 7),
                row(inner, inner, 7),
                column(inner, inner, 7),
                row(inner, width, 7),
            ),
            pooled(channels, width),
        )


class LastGridReduction(Branches):
    """Like GridReduction, with rows and columns."""

    def __init__(self, channels: int, k: int) -> None:
        width = 192 // k
        super().__init__(
            nn.Sequential(
                Convolution(channels, width, 1), Convolution(width, 320 // k, 3, stride=2)
            ),
            nn.Sequential(
                Convolution(channels, width, 1),
                row(width, width, 7),
                column(width, width, 7),
                Convolution(width, width, 3, stride=2),
            ),
            nn.MaxPool2d(3, stride=2),
        )


class WideBlock(Branches):
    """Figure 7: a row and a column side by side, for the coarsest grid."""

    def __init__(self, channels: int, k: int) -> None:
        width = 384 // k
        super().__init__(
            Convolution(channels, 320 // k, 1),
            nn.Sequential(
                Convolution(channels, width, 1),
                Branches(row(width, width, 3), column(width, width, 3)),
            ),
            nn.Sequential(
                Convolution(channels, 448 // k, 1),
                Convolution(448 // k, width, 3, padding=1),
                Branches(row(width, width, 3), column(width, width, 3)),
            ),
            pooled(channels, 192 // k),
        )
