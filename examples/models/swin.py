"""A Swin Transformer that classifies pictures, on synthetic data.

Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted Windows (2021), section
3: attention within windows, which every second layer shifts, and a relative position bias; between
its four stages neighbouring patches are merged, which halves the sides and doubles the width. The
sizes are those that Moirai is measured with (section IV-A, table IV), for pictures of 1100 x 1100.
Moirai does not state how the layers are divided; 2, 2, most of them and 2 or 4 come nearest to its
1.8, 6.6 and 13 thousand million parameters. Windows are 7 x 7, and sides are padded to multiples of
them.

    training_step          32 layers, width 512 with 16 heads in the first stage
    training_step_6600m    48 layers, width 768 with 24 heads
    training_step_13b      56 layers, width 1,024 with 32 heads
    training_step_tiny     Swin-T of the paper: 12 layers, width 96, pictures of 224 x 224
    training_step_small    2 stages of 2 layers, width 16, pictures of 28 x 28, for quick trials
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from placewire.examples.models.data import images, step_on
from placewire.examples.models.parts import FeedForward, small_initial_values
from placewire.optimizer.capture.protocol import TrainingStep


@dataclass(frozen=True)
class Sizes:
    """layers: of each stage. width, heads: of the first stage; they double in each further one."""

    layers: tuple[int, ...] = (2, 2, 26, 2)
    width: int = 512
    heads: int = 16
    side: int = 1100
    window: int = 7
    patch: int = 4
    classes: int = 1000
    dropout: float = 0.1


M6600 = Sizes(layers=(2, 2, 40, 4), width=768, heads=24)
B13 = Sizes(layers=(2, 2, 48, 4), width=1024, heads=32)
TINY = Sizes(layers=(2, 2, 6, 2), width=96, heads=3, side=224)
SMALL = Sizes(layers=(2, 2), width=16, heads=2, side=28, window=3, classes=10)

# Added to the score of two patches that a shifted window brings together from opposite sides.
_APART = -100.0


class WindowAttention(nn.Module):
    """Attention within windows, float[windows, window², width] -> the same. mask: float[windows of
    one picture, window², window²], added to the scores."""

    pair: torch.Tensor

    def __init__(self, width: int, heads: int, window: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.three = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("pair", _relative_positions(window).flatten(), persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        windows, patches, width = x.shape
        three = self.three(x).view(windows, patches, 3, self.heads, width // self.heads)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)
        added = self.bias[self.pair].view(patches, patches, self.heads).permute(2, 0, 1)[None]
        if mask is not None:
            added = (added + mask[:, None]).repeat(windows // len(mask), 1, 1, 1)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=added, dropout_p=self.dropout if self.training else 0.0
        )
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    """float[batch, side, side, width] -> the same; normalisation before each of the two parts."""

    mask: torch.Tensor | None

    def __init__(self, width: int, heads: int, side: int, shifted: bool, sizes: Sizes) -> None:
        super().__init__()
        self.window = min(sizes.window, side)
        self.padding = -side % self.window
        self.shift = self.window // 2 if shifted and side > self.window else 0
        self.attention_norm = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, self.window, sizes.dropout)
        self.dropout = nn.Dropout(sizes.dropout)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, sizes.dropout)
        mask = _mask(side + self.padding, self.window, self.shift) if self.shift else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self._within_windows(self.attention_norm(x)))
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]

    def _within_windows(self, x: torch.Tensor) -> torch.Tensor:
        side, shift = x.shape[1], self.shift
        if self.padding:
            x = functional.pad(x, (0, 0, 0, self.padding, 0, self.padding))
        if shift:
            x = torch.roll(x, (-shift, -shift), dims=(1, 2))
        batch, padded, _, width = x.shape
        mixed = self.attention(_windows(x, self.window), self.mask)
        count = padded // self.window
        x = mixed.view(batch, count, count, self.window, self.window, width)
        x = x.transpose(2, 3).reshape(batch, padded, padded, width)
        if shift:
            x = torch.roll(x, (shift, shift), dims=(1, 2))
        return x[:, :side, :side]


class Merging(nn.Module):
    """float[batch, side, side, width] -> float[batch, ⌈side / 2⌉, ⌈side / 2⌉, 2 width]"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.linear = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        odd = x.shape[1] % 2
        if odd:
            x = functional.pad(x, (0, 0, 0, 1, 0, 1))
        corners = [x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)]
        result: torch.Tensor = self.linear(self.norm(torch.cat(corners, dim=-1)))
        return result


class Patches(nn.Module):
    """float[batch, 3, side, side] -> float[batch, side / patch, side / patch, width]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, sizes.width, kernel_size=sizes.patch, stride=sizes.patch)
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.cut(images).permute(0, 2, 3, 1))
        return result


class Swin(nn.Module):
    """float[batch, 3, side, side] -> logits float[batch, classes]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.patches = Patches(sizes)
        self.stages = nn.Sequential(*_stages(sizes))
        width = sizes.width * 2 ** (len(sizes.layers) - 1)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, sizes.classes)
        self.apply(small_initial_values)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stages(self.patches(images)))
        logits: torch.Tensor = self.head(x.mean(dim=(1, 2)))
        return logits


def _stages(sizes: Sizes) -> Iterator[nn.Module]:
    width, heads, side = sizes.width, sizes.heads, sizes.side // sizes.patch
    for stage, count in enumerate(sizes.layers):
        if stage:
            yield Merging(width)
            width, heads, side = 2 * width, 2 * heads, -(-side // 2)
        for number in range(count):
            yield Layer(width, heads, side, shifted=number % 2 == 1, sizes=sizes)


def _windows(x: torch.Tensor, window: int) -> torch.Tensor:
    """float[batch, side, side, width] -> float[windows, window², width]"""
    batch, side, _, width = x.shape
    count = side // window
    x = x.reshape(batch, count, window, count, window, width).transpose(2, 3)
    return x.reshape(batch * count * count, window * window, width)


def _relative_positions(window: int) -> torch.Tensor:
    """int64[window², window²]: a number for each offset between two patches (section 3.2)."""
    place = torch.arange(window)
    row, column = (axis.flatten() for axis in torch.meshgrid(place, place, indexing="ij"))
    down, right = row[:, None] - row + window - 1, column[:, None] - column + window - 1
    return down * (2 * window - 1) + right


def _mask(side: int, window: int, shift: int) -> torch.Tensor:
    """float[windows, window², window²]: separates patches that a shift brought together."""
    places = torch.arange(side)
    part = (places >= side - window).long() + (places >= side - shift).long()
    parts = _windows((3 * part[:, None] + part)[None, :, :, None], window).squeeze(-1)
    return (parts[:, None] != parts[:, :, None]) * _APART


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes())


def training_step_6600m(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M6600)


def training_step_13b(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, B13)


def training_step_tiny(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, TINY)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = images(batch, seed, sizes.classes, sizes.side)
    return step_on(data, Swin(sizes), nn.CrossEntropyLoss())
