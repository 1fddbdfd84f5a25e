"""Gives plain PyTorch a checkpoint's tensors, nested as state_dict() has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from placewire.job.contract.checkpoint import checkpoint_at
from placewire.job.placed.saved_tensors import saved_tensors
from placewire.job.placed.tensor_file import TensorFileError

_STATE = ".state."


def read_checkpoint(folder: str | Path) -> dict[str, Any]:
    """Reads a checkpoint, like /shared/checkpoints/bert/step-00000400, into the CPU's memory.

    Returns {"model": …, "loss": …, "transient": …} with tensors by the names of state_dict(), and
    {"optimizer": {"state": …, "param_groups": …}}, also "loss_optimizer", by names of parameters,
    as torch.distributed.checkpoint.state_dict takes them. Raises ValueError (CheckpointError,
    TensorFileError) or OSError.
    """
    checkpoint = checkpoint_at(Path(folder))
    if missing := checkpoint.missing:
        raise TensorFileError(f"checkpoint {folder} lacks {', '.join(missing)}")
    groups = checkpoint.manifest.param_groups
    state: dict[str, Any] = {
        optimizer: {"state": {}, "param_groups": [_group(dict(one)) for one in some]}
        for optimizer, some in groups.items()
    }
    with saved_tensors(checkpoint) as saved:
        for name in saved:
            _put(state, name, saved.read(name))
    return state


def _group(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns an entry of param_groups as torch has it; JSON has no tuples."""
    return {key: tuple(value) if key == "betas" else value for key, value in entry.items()}


def _put(state: dict[str, Any], name: str, value: torch.Tensor) -> None:
    part, _, rest = name.partition(".")
    if "param_groups" in state.get(part, {}) and name.startswith(part + _STATE):
        parameter, _, key = name.removeprefix(part + _STATE).rpartition(".")
        state[part]["state"].setdefault(parameter, {})[key] = value
    else:
        state.setdefault(part, {})[rest] = value
