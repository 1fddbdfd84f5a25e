"""Parts of networks that several learned engines use.

In shapes, H is the hidden length, D the devices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from placewire.optimizer.arrays import BoolArray


def perceptron(inputs: int, hidden: int, outputs: int, layers: int) -> nn.Sequential:
    """Has a relu between its layers, none after the last."""
    sizes = [inputs, *[hidden] * (layers - 1), outputs]
    parts: list[nn.Module] = []
    for k in range(layers):
        parts += [nn.ReLU()] if k else []
        parts.append(nn.Linear(sizes[k], sizes[k + 1]))
    return nn.Sequential(*parts)


def sparse(index: Tensor, values: Tensor, count: int) -> Tensor:
    """float[count, count] with values at index int64[2, …]"""
    size = (count, count)
    return torch.sparse_coo_tensor(index, values, size, check_invariants=True).coalesce()


def masked(logits: Tensor, able: BoolArray) -> Tensor:
    """float[..., D] with -inf where able bool[..., D] is False."""
    return logits.masked_fill(torch.from_numpy(~able), -math.inf)
