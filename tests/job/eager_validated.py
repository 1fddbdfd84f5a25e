"""Trains and validates with plain PyTorch, as the reference of ranks that do both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from placewire.optimizer.capture.protocol import ModelWithLoss, load_training_step
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.optimizer.capture.eager import optimizer_of

# Validation's loss and accuracy, by the number of steps done.
Means = dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Validated:
    """losses: of each step. model: as it is after the last."""

    losses: list[float]
    means: Means
    model: torch.nn.Module


def trained_and_validated(
    model: str,
    choice: OptimizerChoice,
    batch: int,
    seed: int,
    *,
    steps: int,
    every: int,
    batches: int,
    accumulate: int = 1,
) -> Validated:
    """After so many steps, and after the last, so many batches are validated. The model's loss has
    the metric accuracy."""
    step = load_training_step(model, batch, seed)
    assert step.loss is not None and step.validation is not None
    whole = ModelWithLoss(step.model, step.loss)
    optimizer = optimizer_of(choice, whole)
    losses, validated = [], {}
    for number in range(steps):
        optimizer.zero_grad()
        total: Any = 0
        for part in zip(*(x.chunk(accumulate) for x in step.batches(number)), strict=True):
            share = whole(*part)[0] / accumulate
            share.backward()
            total = total + share.detach()
        losses.append(total.item())
        optimizer.step()
        if (number + 1) % every == 0 or number + 1 == steps:
            whole.eval()
            found = []
            with torch.no_grad():
                for inputs in map(step.validation, range(batches)):
                    for part in zip(*(x.chunk(accumulate) for x in inputs), strict=True):
                        loss, metrics = whole(*part)
                        found.append((loss.item(), metrics["accuracy"].item()))
            whole.train()
            one, other = zip(*found, strict=True)
            validated[number + 1] = sum(one) / len(one), sum(other) / len(other)
    return Validated(losses, validated, step.model)
