"""Reads the tensors of a whole checkpoint, whichever of its files they are in.

A weight that was cut into shards, and its optimizer state, is saved by rows: under `NAME[0:256]`,
`NAME[256:512]` and so on. Who loads it may have it whole, or cut otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from placewire.job.contract.checkpoint import Checkpoint
from placewire.job.placed.tensor_file import (
    DTYPES,
    Entry,
    TensorFile,
    TensorFileError,
    described,
    overwrite,
)

_ROWS = re.compile(r"(.+)\[([0-9]{1,18}):([0-9]{1,18})\]", re.DOTALL)
_STATE = re.compile(r"(optimizer|loss_optimizer)\.state\.(.+)\.[^.]+", re.DOTALL)
_PART_OF = {"optimizer": "model", "loss_optimizer": "loss"}
# The first extent in what `described` returns.
_EXTENT = re.compile(r"\[([0-9]{1,18})")


class NotSavedError(TensorFileError):
    """Nothing was saved under this name. state_of: the optimizer and the parameter of which it is
    state, by their names in a checkpoint; None where it is none."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it has no {name}")
        state = _STATE.fullmatch(name)
        self.state_of = None if state is None else (state[1], state[2])


class _Part(NamedTuple):
    """Rows start to end, exclusive, of a tensor, and the name that they are saved under."""

    start: int
    end: int
    name: str


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
        self._rows: dict[str, list[_Part]] = {}
        for name in self._file_of:
            # A weight of the model may have a name like that.
            if name not in described and (rows := _ROWS.fullmatch(name)):
                self._rows.setdefault(rows[1], []).append(_Part(int(rows[2]), int(rows[3]), name))
        if both := self._rows.keys() & self._file_of.keys():
            raise TensorFileError(f"{min(both)} is there whole and by rows")

    def __iter__(self) -> Iterator[str]:
        parts = {part.name for rows in self._rows.values() for part in rows}
        yield from (name for name in self._file_of if name not in parts)
        yield from self._rows

    @property
    def has_optimizer_state(self) -> bool:
        return any(_STATE.fullmatch(name) for name in self._file_of)

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor, on the CPU. Raises OSError or TensorFileError."""
        if name not in self._rows:
            return self._file_with(name).read(name)
        parts = self._parts_of(name)
        self._require_fitting(name, parts)
        if not self._entry(parts[0]).shape:  # The same for all rows, as the number of steps is.
            return self._file_of[parts[0].name].read(parts[0].name)
        self._require_joined(name, parts)
        return torch.cat([self._file_of[part.name].read(part.name) for part in parts])

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Overwrites the tensors, also where the file has a weight by other rows, or whole: names
        end in their rows as in the file. Raises OSError, and TensorFileError where one is not
        there, or is of another type or shape. That is seen before it is read: it may be larger than
        memory."""
        for name, tensor in tensors:
            if name in self._file_of:
                self._require_alike(name, tensor, name, tuple(tensor.shape))
                overwrite(tensor, self._file_of[name].read(name))
            else:
                self._load_rows(name, tensor)

    def _load_rows(self, name: str, tensor: torch.Tensor) -> None:
        wanted = _ROWS.fullmatch(name)
        whole = wanted[1] if wanted and name not in self._described else name
        parts = self._parts_of(whole)
        if not parts:
            raise NotSavedError(name)
        if not tensor.dim():  # The same for all rows.
            self._require_alike(name, tensor, parts[0].name, ())
            tensor.copy_(self._file_of[parts[0].name].read(parts[0].name))
            return
        for part in parts:
            self._require_alike(name, tensor, part.name, (part.end - part.start, *tensor.shape[1:]))
        rows = self._require_joined(whole, parts)
        first = int(wanted[2]) if wanted and whole != name else 0
        last = first + tensor.shape[0]
        if last > rows or (whole == name and last != rows):
            raise TensorFileError(f"{whole} has {rows} rows there, and {name} {last} here")
        for part in parts:
            start, end = max(first, part.start), min(last, part.end)
            if start < end:
                own = slice(start - part.start, end - part.start)
                tensor[start - first : end - first] = self._file_of[part.name].read(part.name, own)

    def _parts_of(self, whole: str) -> list[_Part]:
        """By their rows what the tensor is saved as, which is one part where it is saved whole."""
        if whole in self._file_of:
            shape = self._file_of[whole].entries[whole].shape
            return [_Part(0, shape[0] if shape else 0, whole)]
        return sorted(self._rows.get(whole, []))

    def _require_joined(self, name: str, parts: list[_Part]) -> int:
        """Returns the number of rows that the parts have together. Raises TensorFileError where
        rows lack."""
        row = 0
        for part in parts:
            if part.start != row or self._entry(part).shape[0] != part.end - part.start:
                raise TensorFileError(f"{name} is there by rows, and row {row} is not")
            row = part.end
        if (rows := self._rows_of(name)) not in (None, row):
            raise TensorFileError(f"{name} has {rows} rows, and {row} of them are there")
        return row

    def _require_fitting(self, name: str, parts: list[_Part]) -> None:
        entries = [self._entry(part) for part in parts]
        if len({(entry.dtype, entry.shape[1:], bool(entry.shape)) for entry in entries}) > 1:
            raise TensorFileError(f"the rows of {name} do not fit each other")

    def _require_alike(
        self, name: str, tensor: torch.Tensor, saved_as: str, shape: tuple[int, ...]
    ) -> None:
        """Raises TensorFileError where what is saved has not the tensor's type and this shape."""
        saved = self._file_of[saved_as].entries[saved_as]
        if (DTYPES[saved.dtype], saved.shape) != (tensor.dtype, shape):
            raise TensorFileError(
                f"{name} is {described(DTYPES[saved.dtype], saved.shape)} there, and "
                f"{described(tensor.dtype, tuple(tensor.shape))} here"
            )

    def _rows_of(self, name: str) -> int | None:
        """How many rows it has, by the manifest: those of the weight, for optimizer state; None
        where nothing is known."""
        state = _STATE.fullmatch(name)
        weight = f"{_PART_OF[state[1]]}.{state[2]}" if state else name
        known = _EXTENT.search(self._described.get(weight, ""))
        return int(known[1]) if known else None

    def _entry(self, part: _Part) -> Entry:
        return self._file_of[part.name].entries[part.name]

    def _file_with(self, name: str) -> TensorFile:
        if name not in self._file_of:
            raise NotSavedError(name)
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
