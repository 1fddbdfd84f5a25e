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
