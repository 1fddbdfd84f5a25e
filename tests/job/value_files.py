"""Writes a model's values to disk as the programs do that a training may begin from."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict_saver import save

from placewire.job.placed.tensor_file import write_tensors

Values = dict[str, torch.Tensor]


def as_safetensors(values: Values, path: Path) -> Path:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        write_tensors(folder, f"{path.name}.safetensors", values)
    finally:
        os.close(folder)
    return path.with_name(f"{path.name}.safetensors")


def as_folder(values: Values, path: Path) -> Path:
    path.mkdir()
    names = sorted(values)
    for k, some in enumerate((names[::2], names[1::2])):
        as_safetensors({name: values[name] for name in some}, path / f"model-{k}")
    (path / "model.safetensors.index.json").write_text("{}")
    return path


def as_link(values: Values, path: Path) -> Path:
    blob = as_safetensors(values, path).rename(path.with_name("blob"))
    path.symlink_to(blob)
    return path


def as_state_dict(values: object, path: Path) -> Path:
    torch.save(values, path)
    return path


def as_distributed(values: dict[str, object], path: Path) -> Path:
    with warnings.catch_warnings(action="ignore"):  # It says that there is one process.
        save(dict(values), checkpoint_id=path, no_dist=True)
    return path
