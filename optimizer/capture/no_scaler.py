"""Refuses torch.amp.GradScaler in a model: the plan gives it, as it does the optimizer."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from placewire.optimizer.capture.errors import CaptureError, user_location_in

Scaler = torch.amp.GradScaler


@contextlib.contextmanager
def refusing_scalers(where: str) -> Iterator[None]:
    """Inside, scaling a loss raises CaptureError. Otherwise the scale would be captured as a
    constant, and weights updated by gradients that nobody unscales. A scaler that is disabled
    scales nothing, and is none."""
    with contextlib.ExitStack() as patched:
        for kind in _with_subclasses(Scaler):
            if "scale" in vars(kind):
                patched.enter_context(mock.patch.object(kind, "scale", _refusing(kind, where)))
        yield


def _with_subclasses(kind: type[Scaler]) -> Iterator[type[Scaler]]:
    """Such as ShardedGradScaler, where the model has imported it."""
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)


def _refusing(kind: type[Scaler], where: str) -> Callable[..., Any]:
    original: Callable[..., Any] = vars(kind)["scale"]

    def scale(scaler: Scaler, *outputs: Any, **named_outputs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, *outputs, **named_outputs)
        place = user_location_in("".join(traceback.format_stack()), where)
        raise CaptureError(
            f"{place}: a loss that {kind.__module__}.{kind.__qualname__} scales cannot be trained: "
            "nothing would unscale its gradients; take the scaler out of the model, and give its "
            "settings in the plan as job.optimizer.scaler, which does all that the scaler would"
        )

    return scale
