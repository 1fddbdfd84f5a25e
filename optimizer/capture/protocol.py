"""Defines what a model file provides, and loads it.

A plan names `module:function`. The function is called as `function(batch=…, seed=…)` and returns a
TrainingStep. Just before the call torch's generator is seeded with `seed`, so that every process
builds the same parameters; the function must not depend on anything else (time, host, other seeds).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from placewire.optimizer.capture.errors import CaptureError, one_line, user_location
from placewire.optimizer.capture.seeded_draws import seeded_draws
from placewire.optimizer.capture.variants import Autocast
from placewire.optimizer.graph.checked_notes import BUCKET_NAME_WORDS, is_bucket_name

Tensors = tuple[torch.Tensor, ...]
DeviceType = Literal["cpu", "cuda"]
# The scalar loss, or the loss and metrics by their names.
LossAndMetrics = torch.Tensor | tuple[torch.Tensor, Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class TrainingStep:
    """One training step with fixed shapes, or with those of a few buckets.

    model           in training mode; where `loss` is None, `model(*inputs)` returns the scalar loss
                    or the loss and metrics
    example_inputs  tensors with the shapes, strides and types of every batch
    batches         step number (from 0) -> inputs of that step; the same in every process. What it
                    draws from torch's generator of the CPU, `random` and NumPy's global generator
                    is: they are seeded for each call by the job's seed and that number
    loss            if given, `loss(model(*inputs[:-1]), inputs[-1])` returns these
    validation      if given, number of a validation batch (from 0) -> its inputs, as of `batches`
    buckets         by name, an example of each shape that batches may have, where that are several.
                    One of them has the shapes of example_inputs: the bucket that counts most

    Metrics are scalars that are reported beside the loss, in a dictionary: the step returns
    `loss, {"accuracy": accuracy}`. No gradient goes through them.
    """

    model: torch.nn.Module
    example_inputs: Tensors
    batches: Callable[[int], Tensors]
    loss: torch.nn.Module | None = None
    validation: Callable[[int], Tensors] | None = None
    buckets: Mapping[str, Tensors] = field(default_factory=dict)


class ModelWithLoss(torch.nn.Module):
    """A model with its loss; the last input is the target."""

    def __init__(self, model: torch.nn.Module, loss: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *inputs: torch.Tensor) -> LossAndMetrics:
        result: LossAndMetrics = self.loss(self.model(*inputs[:-1]), inputs[-1])
        return result


class UnderAutocast(torch.nn.Module):
    """Runs a module under torch.autocast: matrix products and convolutions use the smaller type,
    where torch's lists say so; parameters, gradients and optimizer keep their type."""

    PREFIX = "module"  # of the parameters' names
    DTYPES: ClassVar[Mapping[Autocast, torch.dtype]] = {
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }

    def __init__(self, module: torch.nn.Module, autocast: Autocast) -> None:
        super().__init__()
        self.module = module
        self.dtype = self.DTYPES[autocast]
        self.device_type = next((p.device.type for p in module.parameters()), "cpu")

    def forward(self, *inputs: torch.Tensor) -> LossAndMetrics:
        with torch.autocast(self.device_type, self.dtype):
            result: LossAndMetrics = self.module(*inputs)
        return result


def load_training_step(model_path: str, batch: int, seed: int) -> TrainingStep:
    """Imports the model's module and builds its step under the seed.

    Modules are looked for in the working directory and on PYTHONPATH. Raises CaptureError; so does
    `batches` of the step for a batch that is not as the example.
    """
    function = _find_function(model_path)
    torch.manual_seed(seed)
    try:
        step = function(batch=batch, seed=seed)
    except Exception as error:
        raise CaptureError(
            f"{model_path}(batch={batch}, seed={seed}) failed at "
            f"{user_location(error, model_path)}: {one_line(error)}"
        ) from error
    if not isinstance(step, TrainingStep):
        raise CaptureError(
            f"{model_path} returned {type(step).__name__}; it must return "
            "placewire.optimizer.capture.protocol.TrainingStep"
        )
    if not _is_tensors(step.example_inputs):
        raise CaptureError(f"{model_path}: example_inputs must be a tuple of tensors")
    for name, module in (("model", step.model), ("loss", step.loss)):
        if not (isinstance(module, torch.nn.Module) or (name == "loss" and module is None)):
            raise CaptureError(
                f"{model_path}: {name} must be a torch.nn.Module, and is a "
                f"{type(module).__name__}; of a function like functional.cross_entropy take the "
                "module, torch.nn.CrossEntropyLoss()"
            )
    step = _with_ordered_buckets(step, model_path)
    return replace(
        step,
        batches=_checked(step.batches, "batches", step, model_path, seed),
        validation=None
        if step.validation is None
        else _checked(step.validation, "validation", step, model_path, seed),
    )


def _checked(
    batches: Callable[[int], Tensors], name: str, step: TrainingStep, model_path: str, seed: int
) -> Callable[[int], Tensors]:
    return lambda number: _checked_batch(batches, number, step, model_path, name, seed)


def _checked_batch(
    batches: Callable[[int], Tensors],
    number: int,
    step: TrainingStep,
    model_path: str,
    name: str,
    seed: int,
) -> Tensors:
    where = f"{model_path}: {name}({number})"
    try:
        with seeded_draws(name, seed, number):
            batch = batches(number)
    except Exception as error:
        raise CaptureError(
            f"{where} failed at {user_location(error, model_path)}: {one_line(error)}"
        ) from error
    if isinstance(batch, list):  # A DataLoader gives one.
        batch = tuple(batch)
    if not _is_tensors(batch):
        raise CaptureError(f"{where} must return a tuple of tensors, like example_inputs")
    _require_shapes(step, batch, where)
    return batch


def shapes_of(inputs: Tensors) -> tuple[str, ...]:
    """Returns the type and shape of each, like `int64[8, 512]`."""
    return tuple(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in inputs)


def bucket_of(step: TrainingStep, inputs: Tensors) -> str | None:
    """Returns the bucket with these shapes and types; None where no bucket has them."""
    found = shapes_of(inputs)
    return next((name for name, one in step.buckets.items() if shapes_of(one) == found), None)


def _require_shapes(step: TrainingStep, batch: Tensors, where: str) -> None:
    """Operators have fixed shapes: another batch would end them in the middle, or be broadcast."""
    returned, expected = shapes_of(batch), shapes_of(step.example_inputs)
    if returned == expected or bucket_of(step, batch) is not None:
        return
    words = ", ".join(returned) or "nothing"
    if step.buckets:
        known = "; ".join(
            f"{name!r} has {', '.join(shapes_of(one))}" for name, one in step.buckets.items()
        )
        raise CaptureError(
            f"{where} returned {words}, which are the shapes and types of no bucket: {known}. Pad "
            "each batch up to one of these, or give its shape a bucket of its own"
        )
    raise CaptureError(
        f"{where} returned {words}, and example_inputs are {', '.join(expected)}: give every batch "
        "the same shapes and types; a DataLoader does with drop_last=True, and texts do when they "
        "are padded to one length, or to a few, each a bucket (`buckets` of the TrainingStep)"
    )


def _with_ordered_buckets(step: TrainingStep, model_path: str) -> TrainingStep:
    """Returns the step with the bucket of example_inputs as the first. Raises CaptureError."""
    if not step.buckets:
        return step
    where, first = f"{model_path}: buckets", bucket_of(step, step.example_inputs)
    seen: dict[tuple[str, ...], str] = {}
    for name, inputs in step.buckets.items():
        if not is_bucket_name(name):
            raise CaptureError(f"{where}: {name!r} is no name; accepted: {BUCKET_NAME_WORDS}")
        if not _is_tensors(inputs):
            raise CaptureError(f"{where}[{name!r}] must be a tuple of tensors, an example batch")
        if (other := seen.setdefault(shapes_of(inputs), name)) != name:
            raise CaptureError(f"{where}: {other!r} and {name!r} have the same shapes and types")
    if first is None:
        raise CaptureError(
            f"{where}: none has the shapes and types of example_inputs, "
            f"{', '.join(shapes_of(step.example_inputs))}; example_inputs is the example of the "
            "bucket that counts most"
        )
    others = {name: one for name, one in step.buckets.items() if name != first}
    return replace(step, buckets={first: step.buckets[first], **others})


def _is_tensors(inputs: object) -> bool:
    return isinstance(inputs, tuple) and all(isinstance(x, torch.Tensor) for x in inputs)


def look_here_for(package: str) -> None:
    """Puts the working directory first on the path where it has the package: an installed command
    has not got it there, unlike `python -m`."""
    if Path(package).is_dir() or Path(f"{package}.py").is_file():
        here = str(Path.cwd())
        if not {"", here} & {*sys.path}:
            sys.path.insert(0, here)


def _find_function(model_path: str) -> Callable[..., Any]:
    module_name, colon, name = model_path.partition(":")
    if not (module_name and colon and name):
        raise CaptureError(
            f"model {model_path!r} is not of the form `module:function`, "
            "for example placewire.examples.models.alexnet:training_step"
        )
    look_here_for(module_name.partition(".")[0])
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise CaptureError(
                f"model {model_path!r}: there is no module {error.name!r} in the working directory "
                "or on PYTHONPATH"
            ) from error
        raise CaptureError(
            f"model {model_path!r} imports {error.name!r}, which is not installed here "
            f"({user_location(error)})"
        ) from error
    except Exception as error:
        raise CaptureError(
            f"model {model_path!r} cannot be imported: {one_line(error)} ({user_location(error)})"
        ) from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        raise CaptureError(f"model {model_path!r}: {module_name} has no function {name!r}")
    return function
