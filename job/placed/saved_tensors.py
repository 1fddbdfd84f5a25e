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


class SavedTensors:
    """The tensors of some open files, by name, those that are saved by rows as whole ones. Ranks
    that held the same tensor all saved it."""

    def __init__(self, files: list[TensorFile]) -> None:
        self._file_of: dict[str, TensorFile] = {}
        for file in files:
            for name in file.entries:
                self._file_of.setdefault(name, file)
        self._rows: dict[str, list[tuple[int, int, str]]] = {}
        for name in self._file_of:
            if rows := _ROWS.fullmatch(name):
                self._rows.setdefault(rows[1], []).append((int(rows[2]), int(rows[3]), name))

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._file_of if not _ROWS.fullmatch(name))
        yield from (name for name in self._rows if name not in self._file_of)

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor, on the CPU. Raises OSError or TensorFileError."""
        if name in self._file_of or name not in self._rows:
            return self._file_with(name).read(name)
        read, row = list[torch.Tensor](), 0
        for start, end, part in sorted(self._rows[name]):
            entry = self._file_of[part].entries[part]
            if entry.shape and (start != row or entry.shape[0] != end - start):
                raise TensorFileError(f"{name} is there by rows, and row {row} is not")
            row = end
            read.append(self._file_of[part].read(part))
            if not entry.shape:  # The same for all rows, as the number of steps is.
                return read[0]
        try:
            return torch.cat(read)
        except (RuntimeError, TypeError) as error:
            raise TensorFileError(f"the rows of {name} do not fit each other: {error}") from error

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
            [stack.enter_context(TensorFile(Path(checkpoint.path, name))) for name in names]
        )
