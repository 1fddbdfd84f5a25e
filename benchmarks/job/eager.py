"""A training step in plain PyTorch, which a captured step without dropout must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.job.rank_pool import Trained
from placewire.job.contract.specification import OptimizerSpec
from placewire.optimizer.capture.metrics import loss_in
from placewire.optimizer.capture.protocol import ModelWithLoss, TrainingStep, load_training_step
from placewire.optimizer.capture.updates import OptimizerChoice


def whole(step: TrainingStep) -> torch.nn.Module:
    """The step's model as a module that returns the loss."""
    return step.model if step.loss is None else ModelWithLoss(step.model, step.loss)


def torch_optimizer(module: torch.nn.Module, choice: OptimizerChoice) -> torch.optim.Optimizer:
    """PyTorch's optimizer, with the fused kernels that captured updates use."""
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[
        choice.name
    ]
    return kind(module.parameters(), fused=True, **dict[str, Any](choice.torch_options))


class EagerStep:
    """A model and its optimizer in PyTorch; run(number, *inputs) is one step."""

    def __init__(self, model: str, batch: int, optimizer: OptimizerSpec, seed: int) -> None:
        step = load_training_step(model, batch, seed)
        self.batches = step.batches
        self.module = whole(step)
        self.choice = OptimizerChoice.of(optimizer.model_dump())
        self.optimizer = torch_optimizer(self.module, self.choice)

    def run(self, number: int, *inputs: torch.Tensor) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = self.choice.lr_at(number)
        self.optimizer.zero_grad()
        loss = loss_in(self.module(*inputs))
        loss.backward()
        if self.choice.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.choice.clip_norm)
        self.optimizer.step()
        return loss.detach()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers under all their names, and optimizer state as `NAME.exp_avg`."""
        parameters = dict(self.module.named_parameters())
        state = {
            f"{name}.{key}": value
            for name, parameter in parameters.items()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        ties = dict(self.module.named_parameters(remove_duplicate=False))
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        held = {**ties, **buffers, **state}
        return {name: value.detach().clone() for name, value in held.items()}


def differences_from_eager(
    one: Trained,
    names: Mapping[str, Sequence[str]],
    model: str,
    batch: int,
    optimizer: OptimizerSpec,
    seed: int,
) -> tuple[str, ...]:
    """The names in PyTorch of all tensors that differ after as many steps on one thread.

    one: the outcome of one rank. names: those of parameters and buffers in PyTorch, by operator id.
    Tensors that no operator holds must be as they were before the first step.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        eager = EagerStep(model, batch, optimizer, seed)
        tensors = eager.tensors()
        losses = tuple(
            eager.run(number, *eager.batches(number)).item() for number in range(len(one.losses))
        )
    finally:
        torch.set_num_threads(threads)
    for identifier, own in names.items():
        tensors |= dict.fromkeys(own, one.tensors[identifier])
        update = identifier.replace("parameter_", "update_", 1) + "."
        for key, value in one.tensors.items():
            if key.startswith(update):
                tensors[f"{own[0]}.{key.removeprefix(update)}"] = value
    return Trained(losses, eager.tensors()).differences(Trained(one.losses, tensors, one.failures))
