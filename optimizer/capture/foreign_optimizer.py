"""Updates by an optimizer class that is not one of our three: torch.optim's others, or a user's.

Each parameter, and each shard of one, has an optimizer object of its own, so that it can be updated
wherever it is held. That is the same computation where a class updates each parameter by its own
gradient and state alone. Whether it does is tried before it is used, with small parameters.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from placewire.optimizer.capture.errors import CaptureError, one_line, user_location
from placewire.optimizer.capture.optimizer_options import Option
from placewire.optimizer.capture.protocol import look_here_for

# A class is tried with matrices of so many rows and columns, cut at half of the rows, for so many
# steps. Rows are whole vectors of a processor, as those of shards are.
_ROWS, _COLUMNS, _STEPS, _LR = 128, 8, 4, 1e-2
# A checkpoint has values of these types from a parameter's state.
SAVED = (torch.Tensor, int, float)


@dataclass(frozen=True)
class ForeignOptimizer:
    """A class that was tried. elementwise: whether parts of a parameter may be updated apart.
    options: in addition to lr; those of torch.optim's classes where empty."""

    path: str
    options: tuple[tuple[str, Option], ...]
    elementwise: bool

    def of(self, parameter: torch.Tensor, lr: float) -> torch.optim.Optimizer:
        """Raises CaptureError where the class refuses the parameter."""
        return _made(self.path, self.options, [parameter], lr)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """How much is kept for a parameter of that shape."""
        shape = tuple(parameter.shape)
        if self.elementwise and parameter.numel() > _ROWS:
            # Its state grows with the number of elements.
            whole, first = (_state_bytes(self, (n,), parameter.dtype) for n in (2 * _ROWS, _ROWS))
            return first + (whole - first) * (parameter.numel() - _ROWS) // _ROWS
        return _state_bytes(self, shape, parameter.dtype)


@functools.cache
def tried(path: str, options: tuple[tuple[str, Option], ...]) -> ForeignOptimizer:
    """path: `module:Class`. Raises CaptureError where it cannot be imported or constructed, takes
    no step without a closure, or updates a parameter by others."""
    generator = torch.Generator().manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(_ROWS, _COLUMNS, generator=generator)

    values = [drawn(), drawn()]
    gradients = [[drawn(), drawn()] for _ in range(_STEPS)]
    together = _trained(path, options, values, gradients)
    apart = [
        _trained(path, options, [value], [[one[k]] for one in gradients])[0]
        for k, value in enumerate(values)
    ]
    if not all(map(_equal, together, apart)):
        raise CaptureError(
            f"optimizer {path} updates a parameter by the gradients of others, which may be on "
            "other servers; take one that updates each parameter by its own gradient and state"
        )
    if not _equal(apart[0], _resumed(path, options, values[0], [one[0] for one in gradients])):
        raise CaptureError(
            f"optimizer {path} keeps more than tensors and numbers by parameter in its `state`, as "
            "in its groups or attributes, which no checkpoint would have; take one that does not"
        )
    elementwise = _is_elementwise(path, options, values, gradients, together)
    return ForeignOptimizer(path, options, elementwise)


def _is_elementwise(
    path: str,
    options: tuple[tuple[str, Option], ...],
    values: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
    trained: Sequence[torch.Tensor],
) -> bool:
    half = _ROWS // 2
    try:
        parts = [
            _trained(path, options, [values[0][rows]], [[one[0][rows]] for one in gradients])[0]
            for rows in (slice(0, half), slice(half, _ROWS))
        ]
        # Small weights of any shape are joined to a row.
        (row,) = _trained(path, options, [_row(values)], [[_row(one)] for one in gradients])
    except CaptureError:  # The class takes no such shape.
        return False
    return _equal(trained[0], torch.cat(parts)) and _equal(_row(trained), row)


def _row(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in values])


def _resumed(
    path: str,
    options: tuple[tuple[str, Option], ...],
    value: torch.Tensor,
    gradients: Sequence[torch.Tensor],
) -> torch.Tensor:
    """The value after all gradients, where another object goes on after half of them with the first
    one's tensors and numbers."""
    parameter = value.clone()
    first, second = (_made(path, options, [parameter], _LR) for _ in range(2))
    half = len(gradients) // 2
    for gradient in gradients[:half]:
        stepped(first, path, [parameter], [gradient])
    kept = {k: v for k, v in first.state[parameter].items() if isinstance(v, SAVED)}
    # As a training that resumes: a step makes the state, and what was saved overwrites it.
    before = parameter.clone()
    stepped(second, path, [parameter], [torch.zeros_like(parameter)])
    parameter.copy_(before)
    second.state[parameter].update(kept)
    for gradient in gradients[half:]:
        stepped(second, path, [parameter], [gradient])
    return parameter


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other)


def _trained(
    path: str,
    options: tuple[tuple[str, Option], ...],
    values: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """The values after a step for each list of gradients."""
    parameters = [value.clone() for value in values]
    optimizer = _made(path, options, parameters, _LR)
    for some in gradients:
        stepped(optimizer, path, parameters, some)
    return parameters


def stepped(
    optimizer: torch.optim.Optimizer,
    path: str,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> None:
    """One step. Raises CaptureError where the class cannot take one like this."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    try:
        optimizer.step()
    except Exception as error:
        raise CaptureError(
            f"optimizer {path} cannot take a step with a gradient alone: {one_line(error)} "
            f"({user_location(error, path)})"
        ) from error
    finally:
        for parameter in parameters:
            parameter.grad = None


def _made(
    path: str, options: tuple[tuple[str, Option], ...], parameters: list[torch.Tensor], lr: float
) -> torch.optim.Optimizer:
    kind = _class(path)
    given: Mapping[str, Any] = {"lr": lr, **dict(options)}
    try:
        return kind(parameters, **given)
    except Exception as error:
        shapes = ", ".join(str(list(one.shape)) for one in parameters[:1])
        raise CaptureError(
            f"optimizer {path} refused a parameter of shape {shapes} with "
            f"{', '.join(f'{k}={v!r}' for k, v in given.items())}: {one_line(error)}; it takes "
            f"{', '.join([*inspect.signature(kind).parameters][1:])}"
        ) from error


@functools.cache
def _class(path: str) -> Callable[..., torch.optim.Optimizer]:
    module_name, _, name = path.partition(":")
    look_here_for(module_name.partition(".")[0])
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise CaptureError(
            f"optimizer {path!r} cannot be imported: {one_line(error)} "
            f"({user_location(error, 'looked for in the working directory and on PYTHONPATH')})"
        ) from error
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise CaptureError(f"optimizer {path!r}: {name} is no subclass of torch.optim.Optimizer")
    found: Callable[..., torch.optim.Optimizer] = kind
    return found


@functools.cache
def _state_bytes(optimizer: ForeignOptimizer, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    parameter = torch.zeros(shape, dtype=dtype)
    made = optimizer.of(parameter, _LR)
    stepped(made, optimizer.path, [parameter], [torch.zeros_like(parameter)])
    tensors = [value for value in made.state[parameter].values() if torch.is_tensor(value)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())
