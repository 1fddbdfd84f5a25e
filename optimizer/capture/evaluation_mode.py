"""Puts a model into evaluation mode for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def in_evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Each part gets its own mode back at the end, also after an error."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
