"""Trains with plain PyTorch, in one process and one loop, as the reference."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.protocol import ModelWithLoss, UnderAutocast, load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast
from placewire.optimizer.profile.straight import StraightStep

# Makes the model to train from the model of the step.
Change = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Trained:
    """scales: those by which each step's loss is multiplied, 1 without a scaler. values: parameters
    and buffers by name, dots as underscores."""

    losses: list[float]
    scales: list[float]
    values: dict[str, torch.Tensor]


def train_captured(captured: CapturedStep, steps: int) -> Trained:
    """Trains the captured step's own values in place."""
    program, saved = StraightStep(captured), captured.code.scaler
    losses, scales = [], []
    for number in range(steps):
        scales += [captured.values[one].item() for one, key in saved.items() if key == "scale"]
        losses.append(program.run(program.load(number)).item())
    values = {k: v for k, v in captured.values.items() if k not in saved}
    return Trained(
        losses, scales or [1.0] * steps, {k.split("_", 1)[1]: v for k, v in values.items()}
    )


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
    given: dict[str, Any] = {} if choice.scaler is None else asdict(choice.scaler)
    scaler = torch.amp.GradScaler("cpu", **given, enabled=choice.scaler is not None)
    losses, scales = [], []
    for number in range(steps):
        parts = [x.chunk(accumulate) for x in step.batches(number)]
        optimizer.zero_grad()
        total: Any = 0
        for micro_batch in zip(*parts, strict=True):
            context = (
                torch.autocast("cpu", UnderAutocast.DTYPES[autocast], cache_enabled=False)
                if autocast
                else nullcontext()
            )
            with context:
                loss = model(*micro_batch)
            share = loss / accumulate
            scaler.scale(share).backward()
            total = total + share.detach()
        losses.append(total.item())
        scales.append(scaler.get_scale())
        if choice.clip_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), choice.clip_norm, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    named = (*model.named_parameters(), *model.named_buffers())
    return Trained(
        losses, scales, {name.replace(".", "_"): value.detach() for name, value in named}
    )


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
    assert trained.losses == expected.losses and trained.scales == expected.scales
    assert len(set(trained.losses)) == steps, "nothing was learnt"
    for name, value in trained.values.items():
        assert torch.equal(value, expected.values[name]), name
    return captured
