"""A training step on another device than the one that its function built it on.

Parameters are built on the CPU, so that their values are the same whatever device trains them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from placewire.optimizer.capture.protocol import Tensors, TrainingStep


def on_device(step: TrainingStep, device: torch.device) -> TrainingStep:
    """The step's own modules, their parameters and buffers moved; its inputs are moved as they are
    read. What is one object under two names stays one. Tensors that modules keep otherwise stay
    where they are: a step should make those on the device of its inputs."""
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # with the first: its id stays its own

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

    def batches(number: int) -> Tensors:
        return tuple(tensor.to(device) for tensor in step.batches(number))

    inputs = tuple(tensor.to(device) for tensor in step.example_inputs)
    return replace(step, example_inputs=inputs, batches=batches)
