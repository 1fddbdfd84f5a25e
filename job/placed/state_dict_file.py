"""Reads what torch.save wrote of a state_dict, of which nothing is run.

PyTorch reads such a file by `weights_only` without calling anything that the file names but what
makes tensors. Tensors stay on disk until they are read (`mmap`).
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from placewire.job.placed.pickle_tuples import require_hashable_archive
from placewire.job.placed.tensor_file import require_bool
from placewire.job.placed.tensor_header import TensorFileError, in_brief

_NAMED = 5


class StateDictFile:
    """shapes: of the tensors, by name. What else the file has beside them is not read."""

    def __init__(self, path: Path, entry: str) -> None:
        """entry: which of the file's dicts is the state_dict; "": the file is one. Raises OSError,
        and TensorFileError where it is none."""
        self._path = path
        tree = _loaded(path)
        if entry:
            if not isinstance(tree, Mapping) or entry not in tree:
                raise TensorFileError(f"{path} has no entry {entry}; it is {_described(tree)}")
            tree = tree[entry]
        tensors = _tensors_of(tree)
        if not tensors:
            what = f"the entry {entry} of {path}" if entry else str(path)
            raise TensorFileError(
                f"{what} is no state_dict: it is {_described(tree)}"
                + ("" if entry else "; give `entry` where one of them is the state_dict")
            )
        self._tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def read(self, name: str, rows: slice | None) -> torch.Tensor:
        """Returns the tensor, or those rows of it, as it lies in the file. Raises TensorFileError
        where it is no plain tensor, or its bytes are no values of its type."""
        _require_plain(f"{self._path}: {name}", self._tensors[name])
        whole = self._tensors[name].detach()
        part = whole if rows is None else whole[rows]
        require_bool(f"{self._path}: {name}", part)
        return part


def _loaded(path: Path) -> Any:
    try:
        if asked := sorted(get_unsafe_globals_in_checkpoint(path)):
            raise TensorFileError(
                f"{path} needs {in_brief(', '.join(asked))}, so that to load it could run code; "
                "save model.state_dict(), which needs tensors alone"
            )
        with path.open("rb") as stream:
            require_hashable_archive(stream)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, TensorFileError):
        raise
    except pickle.UnpicklingError as error:
        raise TensorFileError(
            f"{path} is damaged, or holds more than tensors, numbers and texts"
        ) from error
    except Exception as error:  # Archive, pickle and tensors each raise their own.
        raise TensorFileError(
            f"{path} is no whole file of torch.save: {in_brief(error)}"
        ) from error


def _tensors_of(tree: Any) -> dict[str, torch.Tensor]:
    if not isinstance(tree, Mapping):
        return {}
    return {
        name: value
        for name, value in tree.items()
        # A nested tensor has no shape, and is nothing that a model's state_dict has.
        if isinstance(name, str) and isinstance(value, torch.Tensor) and not value.is_nested
    }


def _require_plain(where: str, tensor: torch.Tensor) -> None:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_quantized
    if not plain or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise TensorFileError(
            f"{where} is no plain tensor: {type(tensor).__name__}, {tensor.dtype}, "
            f"{tensor.layout}, {tensor.device.type}"
        )


def _described(tree: Any) -> str:
    if not isinstance(tree, Mapping):
        return f"a {type(tree).__name__}"
    if not tree:
        return "an empty dict"
    some = [f"{key} ({_kind(value)})" for key, value in list(tree.items())[:_NAMED]]
    more = len(tree) - len(some)
    return in_brief(f"a dict with {', '.join(some)}" + (f" and {more} more" if more else ""))


def _kind(value: Any) -> str:
    if tensors := _tensors_of(value):
        return f"a dict with {len(tensors)} tensors"
    return type(value).__name__
