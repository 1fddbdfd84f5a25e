"""Gives plain PyTorch a checkpoint's tensors, nested as state_dict() has them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from placewire.job.contract.checkpoint import checkpoint_at
from placewire.job.placed.saved_tensors import saved_tensors
from placewire.job.placed.tensor_file import TensorFileError
from placewire.optimizer.capture.state import SCALER

_STATE = ".state."


def read_checkpoint(folder: str | Path) -> dict[str, Any]:
    """Reads a checkpoint, like /shared/checkpoints/bert/step-00000400, into the CPU's memory.

    Returns {"model": …, "loss": …, "transient": …} with tensors by the names of state_dict(), and
    {"optimizer": {"state": …, "param_groups": …}}, also "loss_optimizer", by names of parameters,
    as torch.distributed.checkpoint.state_dict takes them. Where the loss was scaled, "scaler" is
    what torch.amp.GradScaler.load_state_dict() takes. Raises ValueError (CheckpointError,
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
            _put(state, groups, name, saved.read(name))
    if (settings := checkpoint.manifest.scaler) is not None:
        numbers = {key: tensor.item() for key, tensor in state.get(SCALER, {}).items()}
        state[SCALER] = {**settings, **numbers}
    return state


def _group(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns an entry of param_groups as torch has it. JSON has no tuples; and torch would take an
    optimizer's fused kernels, by which ranks train, away where an entry says nothing of them."""
    betas = entry.get("betas")
    tuples = {"betas": tuple(betas)} if isinstance(betas, list) else {}
    return {"fused": True, **entry, **tuples}


def _put(
    state: dict[str, Any], optimizers: Collection[str], name: str, value: torch.Tensor
) -> None:
    """optimizers: the parts that have param_groups. Raises TensorFileError."""
    part, _, rest = name.partition(".")
    if part in optimizers:
        if not name.startswith(part + _STATE):
            raise TensorFileError(f"{name} is no state of a parameter, as all of {part} must be")
        parameter, _, key = name.removeprefix(part + _STATE).rpartition(".")
        state[part]["state"].setdefault(parameter, {})[key] = value
    else:
        state.setdefault(part, {})[rest] = value
