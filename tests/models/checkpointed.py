"""GPT-2 whose layers are checkpointed, in both of torch's ways, beside the same without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placewire.examples.models import gpt2
from placewire.examples.models.parts import SMALL, Sizes
from placewire.optimizer.capture.protocol import TrainingStep

# Drops nothing, and takes the path that dropout needs.
NEVER = 1e-30
DEEP = replace(SMALL, layers=4, dropout=NEVER)
WIDE = Sizes(words=512, length=128, width=128, heads=4, layers=6, dropout=0.0)


class Checkpointed(nn.Module):
    def __init__(self, layer: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return result


class Powers(nn.Module):
    """Views of what is computed, of which only the result stays, and derivatives that read no
    gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.joined = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(self.spread(x)).view(-1, 8, 8)
        cubes = (wide**3).flatten(1) / (1.0 + wide.abs().flatten(1) ** 2)
        result: torch.Tensor = torch.tanh(x + self.joined(cubes)).view(-1, 4, 4)
        return result.flatten(1)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Checkpointed(Powers(), reentrant=False) for _ in range(3)))
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.layers(x))
        return result


def powers(batch: int, seed: int) -> TrainingStep:
    torch.manual_seed(seed)

    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(step)
        return torch.randn(batch, 16, generator=draw), torch.randn(batch, 4, generator=draw)

    return TrainingStep(Deep(), batches(0), batches, nn.MSELoss())


def _step(
    sizes: Sizes, wrapped: Callable[[nn.Module], nn.Module] = lambda layer: layer
) -> Callable[[int, int], TrainingStep]:
    def step(batch: int, seed: int) -> TrainingStep:
        made = gpt2.step_of(batch, seed, sizes)
        layers: nn.Sequential = made.model.layers  # type: ignore[assignment]
        made.model.layers = nn.Sequential(*map(wrapped, layers))
        return made

    return step


def _again(layer: nn.Module) -> nn.Module:
    return Checkpointed(layer, reentrant=False)


plain = _step(DEEP)
again = _step(DEEP, _again)
reentrant = _step(DEEP, lambda layer: Checkpointed(layer, reentrant=True))
nested = _step(DEEP, lambda layer: Checkpointed(Checkpointed(layer, reentrant=False), False))
dropping = _step(replace(DEEP, dropout=0.5))
dropping_again = _step(replace(DEEP, dropout=0.5), _again)
wide, wide_again = _step(WIDE), _step(WIDE, _again)
