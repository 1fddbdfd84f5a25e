"""Converts a checkpoint of version 1, which holds a pickle, to the present version.

    python -m placewire.job.placed.convert_checkpoint OLD/step-00000400 NEW

OLD/step-00000400 stays as it is; NEW is another folder, which gets step-00000400. To read the old
one runs what its file .metadata says: convert only what nobody could write whom you do not trust.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from placewire.job.contract.checkpoint import (
    MANIFEST,
    STAGED,
    WHOLE,
    CheckpointError,
    Manifest,
    checkpoint_path,
    open_folder,
    sync_folder,
    tensor_file,
    write_new,
)
from placewire.job.placed.tensor_file import write_tensors


def convert(old: Path, new: Path) -> Path:
    """Returns the new checkpoint's path. Raises CheckpointError, ValueError or OSError."""
    document = json.loads((old / MANIFEST).read_bytes())
    if document.pop("version", None) != 1:
        raise CheckpointError(f"{old} is no checkpoint of version 1", "there is nothing to convert")
    with tempfile.TemporaryDirectory(prefix="placewire-convert-") as between:
        plain = Path(between, "plain.pt")
        dcp_to_torch_save(old, plain)
        state = torch.load(plain, weights_only=True)
    groups = {part: tree.pop("param_groups") for part, tree in state.items() if _optimizer(tree)}
    manifest = Manifest.model_validate({**document, "files": {}, "param_groups": groups})
    new.mkdir(parents=True, exist_ok=True)
    staged = checkpoint_path(new, STAGED, manifest.step)
    staged.mkdir()
    folder = open_folder(staged)
    try:
        write_tensors(folder, tensor_file(0), _flat(state))
        files = {tensor_file(0): (staged / tensor_file(0)).stat().st_size}
        text = manifest.model_copy(update={"files": files}).model_dump_json(indent=1)
        write_new(folder, MANIFEST, text + "\n")
        os.fsync(folder)
    finally:
        os.close(folder)
    whole = checkpoint_path(new, WHOLE, manifest.step)
    staged.rename(whole)
    sync_folder(new)
    return whole


def _optimizer(tree: dict[str, Any]) -> bool:
    return "param_groups" in tree


def _flat(tree: dict[str, Any], path: str = "") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            found |= _flat(value, name)
        else:
            found[name] = value
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(convert(Path(arguments[0]), Path(arguments[1])))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
