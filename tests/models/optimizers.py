"""Optimizer classes as users write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Signed(torch.optim.Optimizer):
    """Steps by the sign of an average (Chen et al. 2023, algorithm 2); counts in a Python int, and
    every second step is half as long."""

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.99)
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            fast, slow = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["count"], state["average"] = 0, torch.zeros_like(parameter)
                lr = group["lr"] * (0.5 if state["count"] % 2 else 1.0)
                direction = state["average"].lerp(parameter.grad, 1 - fast).sign_()
                parameter.add_(direction, alpha=-lr)
                state["average"].lerp_(parameter.grad, 1 - slow)
                state["count"] += 1


class OneNorm(torch.optim.Optimizer):
    """Divides by the norm of all gradients: no parameter can be updated by itself."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            norm = nn.utils.get_total_norm([p.grad for p in group["params"]])
            for parameter in group["params"]:
                parameter.add_(parameter.grad / norm, alpha=-group["lr"])


class Counting(torch.optim.Optimizer):
    """Counts its steps in the group, which no parameter's state has."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] / group["count"])


class OfMatrices(torch.optim.Optimizer):
    """Lets matrices decay, and no rows; where there is decay, by the norm of the whole matrix."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() > 1 and group["decay"]:
                    parameter.mul_(1 - group["decay"] * group["lr"])
                parameter.add_(parameter.grad, alpha=-group["lr"])


class NoOptimizer:
    def __init__(self, params: Iterable[torch.Tensor], lr: float) -> None:
        pass
