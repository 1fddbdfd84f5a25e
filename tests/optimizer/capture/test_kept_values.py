"""What forward keeps in Python is refused or told of; what each call makes anew is left alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import captured_from
from placewire.optimizer.capture.updates import OptimizerChoice


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) ** 2).sum()


class Counting(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * min(1.0, self.calls / 10)


class Centered(Plain):
    """first: what the center is before the first call."""

    def __init__(self, first: Any) -> None:
        super().__init__()
        self.center = first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.mean(0)
        self.center = now if self.center is None else 0.9 * self.center + 0.1 * now
        return super().forward(x - self.center)


class Kept(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {"means": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen["means"].append(x.mean())
        return super().forward(x * self.seen["means"][0])


class LazilyKept(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "center"):
            self.center = x.mean(0)
        self.center = self.center * 0.9
        return super().forward(x - self.center)


class Masking(Plain):
    """Makes its mask in the first call."""

    mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None or self.mask.shape != x.shape:
            self.mask = torch.ones_like(x).triu()
        return super().forward(x * self.mask)


class Telling(Plain):
    """Its loss is read after forward, in the same step."""

    def __init__(self) -> None:
        super().__init__()
        self.extra: torch.Tensor | None = None
        self.shape: torch.Size | None = None
        self.outputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shape, self.outputs = x.shape, []
        self.extra = self.linear.weight.abs().sum()
        self.outputs.append(self.extra)
        return super().forward(x) + self.extra + self.outputs[0]


class Hooked(Plain):
    """Its features are put by a hook into a container that is only written in place, and are read
    after that, in the same call."""

    def __init__(self, features: Any) -> None:
        super().__init__()
        self.features = features
        self.linear.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if isinstance(self.features, dict):
            self.features["linear"] = output
        else:
            self.features.clear()
            self.features.append(output)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x)
        (feature,) = self.features.values() if isinstance(self.features, dict) else self.features
        return loss + feature.sum()


class Asking(Plain):
    """Asks what it kept for its form alone. other: what it multiplies by where there is any."""

    def __init__(self, other: int = 1) -> None:
        super().__init__()
        self.extra: torch.Tensor | None = None
        self.other = other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.extra is not None and self.extra.shape == x.shape and self.extra.dim() == 2
        self.extra = self.linear(x)
        return super().forward(x) + self.extra.sum() * (self.other if found else 1)


class Averaging(Plain):
    """Keeps an average on which its loss does not depend, or only by a Python number."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.average, self.is_used = torch.zeros(()), is_used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x)
        if self.is_used:
            loss = loss * float(self.average)
            self.average = x.mean()
        else:
            self.average = 0.9 * self.average + 0.1 * loss.detach()
        return loss


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


class ByFunction(Plain):
    """Gives what it kept to a function of its own alone."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before: Any = Doubled.apply(self.last)
        self.last = x.mean()
        return super().forward(x) * before


class CountingInside(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Any] = {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.told["calls"] += 1
        self.told["mean"] = x.mean()
        return super().forward(x)


class Narrowing(Plain):
    """As Swin does with its windows."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window = min(self.window, x.shape[1])
        return super().forward(x) * self.window


class Drawing(Plain):
    def __init__(self, library: str) -> None:
        super().__init__()
        self.library = library

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = random.random() if self.library == "random" else np.random.beta(2, 2)
        return super().forward(x) * float(drawn)


class Replacing(Plain):
    def __init__(self, written: bool) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(4))
        self.written = written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        center = self.get_buffer("center")
        now = 0.9 * center + 0.1 * x.detach().mean(0)
        if self.written:
            center.copy_(now)
        else:
            self.center = now
        return super().forward(x - now)


class Normed(nn.Module):
    """Its weight is computed anew before each call, by what PyTorch calls a hook."""

    def __init__(self, normed: Any) -> None:
        super().__init__()
        self.linear = normed(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) ** 2).sum()


class Inside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(self.first(x))
        return result


class Smoothed(nn.Module):
    """A loss that keeps a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.zeros(())

    def forward(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss = ((found - wanted) ** 2).mean()
        self.average = 0.5 * self.average + 0.5 * loss.detach()
        return loss / (1 + self.average)


def captured(model: nn.Module, **options: Any) -> CapturedStep:
    inputs = (torch.ones(2, 4),)
    step = TrainingStep(model, inputs, lambda number: inputs)
    return captured_from(step, CaptureOptions("here:step", 2, OptimizerChoice(), 0, **options))


def kept(model: nn.Module, **options: Any) -> str | None:
    told: str | None = captured(model, **options).operators.notes.get("kept")
    return told


@pytest.mark.parametrize("autocast", [None, "bf16"])
def test_a_number_that_forward_counts_is_told(autocast: Any) -> None:
    model = Inside(Counting())
    told = kept(model, autocast=autocast)
    assert told is not None
    assert "Python: inner.calls of Counting from 0 to 1 (" in told
    assert ": `self.calls += 1`). The step is fixed when it is captured" in told
    assert vars(model.inner)["calls"] == 0 and "calls" not in vars(Counting)


@pytest.mark.parametrize(
    ("model", "attribute"),
    [
        (Centered(torch.zeros(4)), "center of Centered"),
        (Centered(None), "center of Centered"),
        (LazilyKept(), "center of LazilyKept"),
        (Kept(), "seen of Kept"),
        (Asking(other=2), "extra of Asking"),
        (Averaging(is_used=True), "average of Averaging"),
        (Averaging(is_used=False), "average of Averaging"),
        (ByFunction(), "last of ByFunction"),
        (Inside(Centered(None)), "inner.center of Centered"),
    ],
)
def test_a_tensor_that_forward_keeps_is_refused(model: nn.Module, attribute: str) -> None:
    before = {k: dict(vars(m)) for k, m in model.named_modules()}
    with pytest.raises(CaptureError) as refused:
        captured(model)
    said = str(refused.value)
    assert f"forward reads {attribute} and then sets it" in said
    assert "test_kept_values.py:" in said and "(self.register_buffer(" in said
    after = {k: dict(vars(m)) for k, m in model.named_modules()}
    assert {k: v.keys() for k, v in before.items()} == {k: v.keys() for k, v in after.items()}
    assert not {"center", "seen"} & {*vars(type(model)), *vars(Centered)}


@pytest.mark.parametrize("autocast", [None, "bf16"])
def test_a_buffer_that_forward_replaces_is_refused_and_one_that_it_writes_is_not(
    autocast: Any,
) -> None:
    """torch alone would leave the buffer of an inner module as it was."""
    written = captured(Inside(Replacing(written=True)), autocast=autocast)
    assert "buffer_inner_center" in written.code.buffers
    with pytest.raises(CaptureError) as refused:
        captured(Inside(Replacing(written=False)), autocast=autocast)
    said = str(refused.value)
    assert ": `self.center = now`: forward reads buffer inner.center and then puts another" in said
    assert "write it in place (self.center.copy_(...))" in said


def test_a_loss_may_not_keep_a_tensor_either() -> None:
    inputs = torch.ones(2, 4), torch.ones(2, 4)
    step = TrainingStep(nn.Linear(4, 4), inputs, lambda number: inputs, loss=Smoothed())
    with pytest.raises(CaptureError, match=r"reads loss\.average of Smoothed and then sets it"):
        captured_from(step, CaptureOptions("here:step", 2, OptimizerChoice(), 0))


@pytest.mark.parametrize(
    "make",
    [
        Plain,
        Masking,
        Telling,
        lambda: Hooked({}),
        lambda: Hooked([]),
        Asking,
        Narrowing,
        lambda: Normed(nn.utils.weight_norm),
        lambda: Normed(nn.utils.spectral_norm),
        lambda: Normed(nn.utils.parametrizations.weight_norm),
    ],
    ids=[
        "plain", "mask", "told", "dict", "list", "asked", "windows", "weight norm", "spectral norm",
        "parametrization",
    ],
)  # fmt: skip
def test_what_each_call_sets_anew_or_leaves_is_left_alone(make: Any) -> None:
    assert kept(Inside(make())) is None


def test_what_a_hook_sets_anew_is_left_alone_under_autocast() -> None:
    assert kept(Inside(Hooked({})), autocast="bf16") is None


def test_a_number_beside_tensors_that_are_set_anew_is_told() -> None:
    told = kept(CountingInside())
    assert told is not None and "told of CountingInside from {'calls': 0} to {'calls': 1" in told


@pytest.mark.parametrize("library", ["random", "numpy"])
def test_what_forward_draws_in_python_is_refused(library: str) -> None:
    with pytest.raises(CaptureError) as refused:
        captured(Inside(Drawing(library)))
    name = "Python's `random`" if library == "random" else "NumPy's global generator"
    assert f"here:step: forward draws from {name}, and what it drew" in str(refused.value)
