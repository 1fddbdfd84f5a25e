"""Trains with plain PyTorch, in one process and one loop, as the reference."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from placewire.optimizer.capture.protocol import Autocast, ModelWithLoss, load_training_step
from placewire.optimizer.capture.step import CapturedStep, capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.profile.straight import StraightStep

# Makes the model to train from the model of the step.
Change = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Trained:
    """values: parameters and buffers by name, dots as underscores."""

    losses: list[float]
    values: dict[str, torch.Tensor]


def train_captured(captured: CapturedStep, steps: int) -> Trained:
    """Trains the captured step's own values in place."""
    program = StraightStep(captured)
    losses = [program.run(program.load(number)).item() for number in range(steps)]
    return Trained(losses, {k.split("_", 1)[1]: v for k, v in captured.values.items()})


def train_eager(
    path: str,
    choice: OptimizerChoice,
    steps: int,
    batch: int,
    seed: int,
    accumulate: int = 1,
    autocast: Autocast | None = None,
) -> Trained:
    step = load_training_step(path, batch, seed)
    model = step.model if step.loss is None else ModelWithLoss(step.model, step.loss)
    optimizer = optimizer_of(choice, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, choice.schedule.factor_at)
    losses = []
    for number in range(steps):
        parts = [x.chunk(accumulate) for x in step.batches(number)]
        optimizer.zero_grad()
        total: Any = 0
        for micro_batch in zip(*parts, strict=True):
            context = (
                torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
                if autocast
                else nullcontext()
            )
            with context:
                loss = model(*micro_batch)
            share = loss / accumulate
            share.backward()
            total = total + share.detach()
        losses.append(total.item())
        if choice.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), choice.clip_norm, foreach=False)
        optimizer.step()
        schedule.step()
    named = (*model.named_parameters(), *model.named_buffers())
    return Trained(losses, {name.replace(".", "_"): value.detach() for name, value in named})


def optimizer_of(choice: OptimizerChoice, model: nn.Module) -> torch.optim.Optimizer:
    options = choice.all_options
    if choice.foreign is not None:
        module, _, name = choice.name.partition(":")
        kind: Any = getattr(importlib.import_module(module), name)
        made: torch.optim.Optimizer = kind(model.parameters(), lr=choice.lr, **options)
        return made
    if choice.name == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=choice.lr, momentum=options["momentum"],
            weight_decay=options["weight_decay"], nesterov=bool(options["nesterov"]), fused=True,
        )  # fmt: skip
    return torch.optim.AdamW(
        model.parameters(), lr=choice.lr, betas=(options["beta1"], options["beta2"]),
        eps=options["eps"], weight_decay=options["weight_decay"], fused=True,
    )  # fmt: skip


def assert_trains_as_eager(
    path: str,
    choice: OptimizerChoice,
    steps: int = 5,
    batch: int = 4,
    accumulate: int = 1,
    autocast: Autocast | None = None,
) -> CapturedStep:
    """Compares losses of all steps, and parameters and buffers after them, to the last bit."""
    captured = capture(path, batch, choice, 3, accumulate, autocast)
    expected = train_eager(path, choice, steps, batch, 3, accumulate, autocast)
    trained = train_captured(captured, steps)
    assert trained.losses == expected.losses
    assert len(set(trained.losses)) == steps, "nothing was learnt"
    for name, value in trained.values.items():
        assert torch.equal(value, expected.values[name]), name
    return captured
