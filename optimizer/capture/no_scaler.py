"""Refuses torch.amp.GradScaler in a model: a step has no place for it."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn
from unittest import mock

import torch

from placewire.optimizer.capture.errors import CaptureError, user_location_in


@contextlib.contextmanager
def refusing_scalers(where: str) -> Iterator[None]:
    """Inside, scaling a loss raises CaptureError. Otherwise the scale would be captured as a
    constant, and weights updated by gradients that nobody unscales."""

    def scale(*_: Any, **__: Any) -> NoReturn:
        place = user_location_in("".join(traceback.format_stack())) or where
        raise CaptureError(
            f"{place}: a loss that torch.amp.GradScaler scales cannot be trained: nothing would "
            "unscale its gradients; leave the scaler out, and for mixed precision give "
            "job.autocast: bf16, which needs none"
        )

    with mock.patch.object(torch.amp.GradScaler, "scale", scale):
        yield
