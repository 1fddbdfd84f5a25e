"""Reads the tensors of a whole checkpoint, whichever of its files they are in.

A weight that was cut into shards, and its optimizer state, is saved by rows: under `NAME[0:256]`,
`NAME[256:512]` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from placewire.job.contract.checkpoint import Checkpoint
from placewire.job.placed.tensor_file import TensorFile, TensorFileError, described

_ROWS = re.compile(r"(.+)\[([0-9]{1,18}):([0-9]{1,18})\]", re.DOTALL)
_STATE = re.compile(r"(optimizer|loss_optimizer)\.state\.(.+)\.[^.]+", re.DOTALL)
_PART_OF = {"optimizer": "model", "loss_optimizer": "loss"}
# The first extent in what `described` returns.
_EXTENT = re.compile(r"\[([0-9]{1,18})")


class SavedTensors:
    """The tensors of some open files, by name, those that are saved by rows as whole ones. Ranks
    that held the same tensor all saved it.

    described: type and shape of tensors by name, as in a manifest. Raises TensorFileError where a
    tensor is there whole and by rows.
    """

    def __init__(self, files: list[TensorFile], described: Mapping[str, str]) -> None:
        self._described = described
        self._file_of: dict[str, TensorFile] = {}
        for file in files:
            for name in file.entries:
                self._file_of.setdefault(name, file)
        self._rows: dict[str, list[tuple[int, int, str]]] = {}
        for name in self._file_of:
            # A weight of the model may have a name like that.
            if name not in described and (rows := _ROWS.fullmatch(name)):
                self._rows.setdefault(rows[1], []).append((int(rows[2]), int(rows[3]), name))
        if both := self._rows.keys() & self._file_of.keys():
            raise TensorFileError(f"{min(both)} is there whole and by rows")

    def __iter__(self) -> Iterator[str]:
        parts = {part for rows in self._rows.values() for _, _, part in rows}
        yield from (name for name in self._file_of if name not in parts)
        yield from self._rows

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor, on the CPU. Raises OSError or TensorFileError."""
        if name not in self._rows:
            return self._file_with(name).read(name)
        parts = sorted(self._rows[name])
        entries = [self._file_of[part].entries[part] for _, _, part in parts]
        shapes = {(entry.torch_dtype, entry.shape[1:], bool(entry.shape)) for entry in entries}
        if len(shapes) > 1:
            raise TensorFileError(f"the rows of {name} do not fit each other")
        if not entries[0].shape:  # The same for all rows, as the number of steps is.
            return self._file_of[parts[0][2]].read(parts[0][2])
        row = 0
        for (start, end, _), entry in zip(parts, entries, strict=True):
            if start != row or entry.shape[0] != end - start:
                raise TensorFileError(f"{name} is there by rows, and row {row} is not")
            row = end
        if (rows := self._rows_of(name)) not in (None, row):
            raise TensorFileError(f"{name} has {rows} rows, and {row} of them are there")
        return torch.cat([self._file_of[part].read(part) for _, _, part in parts])

    def _rows_of(self, name: str) -> int | None:
        """How many rows it has, by the manifest: those of the weight, for optimizer state; None
        where nothing is known."""
        state = _STATE.fullmatch(name)
        weight = f"{_PART_OF[state[1]]}.{state[2]}" if state else name
        known = _EXTENT.search(self._described.get(weight, ""))
        return int(known[1]) if known else None

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrites the tensors. Raises OSError, and TensorFileError where one is not there, or is
        of another type or shape. That is seen before it is read: it may be larger than memory."""
        for name, tensor in tensors.items():
            saved = self._file_with(name).entries[name]
            if (saved.torch_dtype, saved.shape) != (tensor.dtype, tuple(tensor.shape)):
                raise TensorFileError(
                    f"{name} is {described(saved.torch_dtype, saved.shape)} there, and "
                    f"{described(tensor.dtype, tensor.shape)} here"
                )
            tensor.copy_(self.read(name))

    def _file_with(self, name: str) -> TensorFile:
        if name not in self._file_of:
            raise TensorFileError(f"it has no {name}")
        return self._file_of[name]


@contextmanager
def saved_tensors(checkpoint: Checkpoint) -> Iterator[SavedTensors]:
    """Opens the files of the manifest. Raises OSError or TensorFileError."""
    with ExitStack() as stack:
        names = checkpoint.manifest.files
        yield SavedTensors(
            [stack.enter_context(TensorFile(Path(checkpoint.path, name))) for name in names],
            checkpoint.manifest.tensors,
        )
