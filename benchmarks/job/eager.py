"""The same step in plain PyTorch: what a captured one must equal where nothing is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from agent.contract.job import OptimizerSpec
from benchmarks.job.rank_pool import Trained
from optimizer.capture.protocol import ModelWithLoss, TrainingStep, load_training_step
from optimizer.capture.updates import OptimizerChoice


def whole(step: TrainingStep) -> torch.nn.Module:
    """A module that returns the loss."""
    return step.model if step.loss is None else ModelWithLoss(step.model, step.loss)


def torch_optimizer(module: torch.nn.Module, spec: OptimizerSpec) -> torch.optim.Optimizer:
    """With the kernels that updates use."""
    options = dict(OptimizerChoice(spec.name, spec.lr, spec.options).torch_options)
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.SGD
    return kind(module.parameters(), fused=True, **options)


def eager_trained(
    model: str,
    batch: int,
    optimizer: OptimizerSpec,
    seed: int,
    steps: int,
    names: Mapping[str, Sequence[str]],
) -> Trained:
    """names: of parameters and buffers in the module that returns the loss, by operator id."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = load_training_step(model, batch, seed)
        module = whole(step)
        training = torch_optimizer(module, optimizer)
        losses = []
        for number in range(steps):
            training.zero_grad()
            loss = module(*step.batches(number))
            loss.backward()
            training.step()
            losses.append(loss.item())
    finally:
        torch.set_num_threads(threads)
    return Trained(tuple(losses), _tensors(module, training, names))


def _tensors(
    module: torch.nn.Module, training: torch.optim.Optimizer, names: Mapping[str, Sequence[str]]
) -> dict[str, torch.Tensor]:
    held = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    found = {}
    for identifier, (name, *_) in names.items():
        found[identifier] = held[name].detach()
        for key, value in training.state.get(held[name], {}).items():
            found[f"{identifier.replace('parameter_', 'update_', 1)}.{key}"] = value
    return found
