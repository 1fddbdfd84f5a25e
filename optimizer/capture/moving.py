"""Moves a training step to another device than the CPU, on which its function builds it.

Parameters are built on the CPU, so that their values do not depend on the device that trains them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from placewire.optimizer.capture.protocol import Tensors, TrainingStep


def on_device(step: TrainingStep, device: torch.device) -> TrainingStep:
    """Moves parameters and buffers of the step's own modules at once, and inputs when they are
    read. One object under two names stays one object. Other tensors of modules stay where they are:
    a step should make these on the device of its inputs."""
    # By id of the original, which is kept too, so that no other object gets its id.
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def there(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            value = tensor.detach().to(device)
            if isinstance(tensor, torch.nn.Parameter):
                value = torch.nn.Parameter(value, tensor.requires_grad)
            moved[id(tensor)] = tensor, value
        return moved[id(tensor)][1]

    for module in (step.model, step.loss):
        for part in () if module is None else module.modules():
            tensors = [
                *part.named_parameters(recurse=False, remove_duplicate=False),
                *part.named_buffers(recurse=False, remove_duplicate=False),
            ]
            for name, tensor in tensors:
                setattr(part, name, there(tensor))

    def moved_batches(batches: Callable[[int], Tensors]) -> Callable[[int], Tensors]:
        return lambda number: moved_inputs(batches(number))

    def moved_inputs(inputs: Tensors) -> Tensors:
        return tuple(tensor.to(device) for tensor in inputs)

    return replace(
        step,
        example_inputs=moved_inputs(step.example_inputs),
        buckets={name: moved_inputs(inputs) for name, inputs in step.buckets.items()},
        batches=moved_batches(step.batches),
        validation=None if step.validation is None else moved_batches(step.validation),
    )
