"""Small steps with one feature of PyTorch each, which must train as eager PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from placewire.optimizer.capture.protocol import Tensors, TrainingStep

WIDTH = 6


def _batch(batch: int, seed: int, step: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed * 7919 + step)
    x = torch.randn(batch, WIDTH, generator=generator)
    # Signs alternate from step to step, so that conditionals take both sides.
    return (x + (1 if step % 2 else -1),)


def _step(model: nn.Module, batch: int, seed: int) -> TrainingStep:
    return TrainingStep(
        model=model,
        example_inputs=_batch(batch, seed, 0),
        batches=lambda step: _batch(batch, seed, step),
    )


class Conditional(nn.Module):
    """Each side has a layer of its own; nested: one side has a conditional in it."""

    def __init__(self, eager: bool, nested: bool, factor: float = 2.0, drop: float = 0.0) -> None:
        super().__init__()
        self.inner, self.one, self.other = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.eager, self.nested, self.factor = eager, nested, factor
        self.dropout = nn.Dropout(drop) if drop else nn.Identity()

    def _choose(
        self,
        predicate: torch.Tensor,
        one: Callable[..., torch.Tensor],
        other: Callable[..., torch.Tensor],
        x: torch.Tensor,
    ) -> torch.Tensor:
        if not self.eager:
            result: torch.Tensor = torch.cond(predicate, one, other, (x,))
            return result
        return one(x) if predicate else other(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)

        def one(y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.one(y))

        def other(y: torch.Tensor) -> torch.Tensor:
            if self.nested:
                return self._choose(y.mean() > 0.1, torch.sin, torch.cos, self.other(y))
            result: torch.Tensor = self.dropout(self.other(y).relu() * self.factor)
            return result

        x = self._choose(x.sum() > 0, one, other, x)
        result = (x**2).mean()
        if self.eager:
            # torch.cond gives the side that is not taken a gradient of zeros, not None.
            result = result + 0 * sum(p.sum() for p in self.parameters())
        return result


def conditional(batch: int, seed: int, eager: bool = False) -> TrainingStep:
    return _step(Conditional(eager, nested=False), batch, seed)


def conditional_in_conditional(batch: int, seed: int, eager: bool = False) -> TrainingStep:
    return _step(Conditional(eager, nested=True), batch, seed)


def as_python_chooses(batch: int, seed: int) -> TrainingStep:
    return conditional(batch, seed, eager=True)


def as_python_chooses_twice(batch: int, seed: int) -> TrainingStep:
    return conditional_in_conditional(batch, seed, eager=True)


def conditional_of_another_side(batch: int, seed: int) -> TrainingStep:
    return _step(Conditional(eager=False, nested=False, factor=3.0), batch, seed)


def dropping_conditional(batch: int, seed: int) -> TrainingStep:
    return _step(Conditional(eager=False, nested=False, drop=0.5), batch, seed)


class InPlace(nn.Module):
    """Has relu_, add_, masked_fill_, and writes into slices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu_()
        z = self.second(y)
        z.add_(y, alpha=0.5).masked_fill_(x > 1.5, 0.25)
        z[:, :2] = z[:, 2:4] * 2
        z[:, -1].mul_(0.1)
        return z.square().mean()


class Loops(nn.Module):
    """Has Python loops over shapes, a list and a dict of modules, and a module in a module."""

    def __init__(self) -> None:
        super().__init__()
        cell = nn.Linear(2 * WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)
        )
        self.named = nn.ModuleDict({"cell": cell, "inner": nn.Sequential(nn.LayerNorm(WIDTH))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[0], WIDTH)
        for column in range(x.shape[1] // 2):
            state = self.named["cell"](torch.cat([state, x.roll(column, dims=1)], dim=1)).tanh()
        for layer in self.layers:
            state = state + layer(state)
        return (self.named["inner"](state) - x).abs().mean()


class SeveralLosses(nn.Module):
    """Has several losses, a frozen layer, and a parameter that no loss needs."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.frozen, self.unused, self.a, self.b = (
            nn.Linear(WIDTH, WIDTH) for _ in range(5)
        )
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.frozen(self.trunk(x).tanh())
        losses = [
            functional.mse_loss(self.a(y), x),
            functional.l1_loss(self.b(y), x.detach() * 0.5),
            0.01 * self.trunk.weight.norm(),
        ]
        return torch.stack(losses).sum()


class Buffers(nn.Module):
    """Has a buffer written and read in the same step, one that is assigned, and one only read."""

    mean: torch.Tensor
    count: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.mean.clone()
        self.mean.lerp_(x.detach().mean(0), 0.1)
        self.count += 1
        y = self.norm(self.linear(x - self.mean) * self.scale)
        return ((y - before) ** 2).mean() + 0.01 * self.count


class OwnAutocast(nn.Module):
    """Has autocast contexts in the model: nested, switched off inside, and entered twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.first(x).tanh()
            with torch.autocast("cpu", enabled=False):
                y = self.second(y.float())
        with torch.autocast("cpu", torch.bfloat16):
            z = self.third(y)
        return (z.float() - x).square().mean()


class Norms(nn.Module):
    """Has a convolution, a batch norm, and gradients of other layouts than their parameters'."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.turned = nn.Parameter(torch.randn(WIDTH, 4) * 0.3)
        self.spread = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x[:, None, :])).relu()
        z = torch.einsum("bcw,wc->bc", y, self.turned) + self.spread
        return z.square().mean() + self.spread.sum() * 0.1


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) @ mask).square().mean()


class OwnFunction(nn.Module):
    """Its function's backward pass is not the derivative of its forward pass."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: torch.Tensor, scale: float, bias: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * x * scale, x + bias

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            (x,) = ctx.saved_tensors
            return gradients[0] * x * ctx.scale + gradients[1].abs(), None, gradients[1].sum(0)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for apply in (self.Scaled.apply, scaled):
            squares, moved = apply(self.first(x), 0.5, self.bias)
            x = x + squares + torch.tanh(moved)
        return self.second(x).square().mean()


# As torch's documentation has it: taken before anything is captured.
scaled = OwnFunction.Scaled.apply


class Steep(torch.autograd.Function):
    """Transforms of torch.func can run it. Its gradient is not that of its forward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Tensors, output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 5


steep = Steep.apply


class VmappedFunction(nn.Module):
    """Has vmap of a function of its own, named in the step and taken before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for apply in (Steep.apply, steep):
            y = torch.vmap(apply)(self.first(x))
            x = x + y.tanh()
        return self.second(x).square().mean()


def with_a_mask(batch: int, seed: int) -> TrainingStep:
    """Has an input that has no dimension for samples."""

    def batches(step: int) -> Tensors:
        return (*_batch(batch, seed, step), torch.ones(WIDTH, WIDTH))

    return TrainingStep(model=Masked(), example_inputs=batches(0), batches=batches)


def in_place(batch: int, seed: int) -> TrainingStep:
    return _step(InPlace(), batch, seed)


def loops(batch: int, seed: int) -> TrainingStep:
    return _step(Loops(), batch, seed)


def several_losses(batch: int, seed: int) -> TrainingStep:
    return _step(SeveralLosses(), batch, seed)


def buffers(batch: int, seed: int) -> TrainingStep:
    return _step(Buffers(), batch, seed)


def own_autocast(batch: int, seed: int) -> TrainingStep:
    return _step(OwnAutocast(), batch, seed)


def layouts(batch: int, seed: int) -> TrainingStep:
    return _step(Norms(), batch, seed)


def own_function(batch: int, seed: int) -> TrainingStep:
    return _step(OwnFunction(), batch, seed)


def vmapped_function(batch: int, seed: int) -> TrainingStep:
    return _step(VmappedFunction(), batch, seed)


FEATURES = (
    "in_place", "loops", "several_losses", "buffers", "own_autocast", "layouts", "own_function",
    "vmapped_function",
)  # fmt: skip
