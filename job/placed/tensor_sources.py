"""Finds the named tensors of a file or folder, whichever program wrote it.

A file is safetensors, or of torch.save. A folder has several safetensors, as large models of
Hugging Face do, or is of torch.distributed.checkpoint. Of none of them anything is run. Which
tensors safetensors have is found without torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from placewire.job.contract.checkpoint import open_file
from placewire.job.placed.tensor_header import TensorFileError, TensorHeader

if TYPE_CHECKING:
    import torch

_SAFETENSORS = ".safetensors"
_METADATA = ".metadata"
_ZIP = b"PK\3\4"
# What torch.save wrote begins so where it is no zip.
_BEFORE_1_6 = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9"


class TensorSource(Protocol):
    """shapes: of the tensors, by name."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str, rows: slice | None) -> torch.Tensor:
        """Returns the tensor, or those rows of it, on the CPU. Raises OSError or
        TensorFileError."""


@contextmanager
def opened(path: Path, entry: str) -> Iterator[TensorSource]:
    """entry: which of the file's several state_dicts is meant, "" where it is one itself. Raises
    OSError or TensorFileError."""
    path = path.resolve(strict=True)  # Downloads of Hugging Face are links.
    with ExitStack() as stack:
        begin = b"" if path.is_dir() else _first_bytes(path)
        if begin == _BEFORE_1_6:
            raise TensorFileError(
                f"{path} is in the format of torch.save before PyTorch 1.6; load it, and save it "
                "again with PyTorch 1.6 or later"
            )
        if begin.startswith(_ZIP):  # No header of safetensors begins so.
            from placewire.job.placed.state_dict_file import StateDictFile

            yield StateDictFile(path, entry)
            return
        source: TensorSource
        inside = sorted(path.iterdir()) if path.is_dir() else []
        if path / _METADATA in inside:
            # Each rank would need 50 MiB more for it, and 0.7 s of a processor.
            from placewire.job.placed.distributed_checkpoint import DistributedCheckpoint

            source = DistributedCheckpoint(path / _METADATA)
        else:
            files = [file for file in inside if file.name.endswith(_SAFETENSORS)]
            if path.is_dir() and not files:
                raise TensorFileError(
                    f"no file in this folder is called {_METADATA} or *{_SAFETENSORS}"
                )
            source = _Safetensors(
                [stack.enter_context(TensorHeader(file.resolve())) for file in files or [path]]
            )
        yield _Entry(source, entry) if entry else source


class _Safetensors:
    def __init__(self, files: Sequence[TensorHeader]) -> None:
        self._file_of: dict[str, TensorHeader] = {}
        for file in files:
            if twice := self._file_of.keys() & file.entries.keys():
                raise TensorFileError(f"{min(twice)} is in {file.path.name} and in another file")
            self._file_of |= dict.fromkeys(file.entries, file)
        self.shapes = {name: file.entries[name].shape for name, file in self._file_of.items()}

    def read(self, name: str, rows: slice | None) -> torch.Tensor:
        from placewire.job.placed.tensor_file import read_tensor

        return read_tensor(self._file_of[name], name, rows)


class _Entry:
    """One state_dict of several whose names were joined by dots, as `model.fc.weight`."""

    def __init__(self, source: TensorSource, entry: str) -> None:
        self._source, self._before = source, f"{entry}."
        self.shapes = {
            name.removeprefix(self._before): shape
            for name, shape in source.shapes.items()
            if name.startswith(self._before)
        }
        if not self.shapes:
            raise TensorFileError(
                f"no name in it begins with {self._before}, as those of the entry {entry} would"
            )

    def read(self, name: str, rows: slice | None) -> torch.Tensor:
        return self._source.read(self._before + name, rows)


def _first_bytes(file: Path) -> bytes:
    with os.fdopen(open_file(file), "rb") as stream:
        return stream.read(len(_BEFORE_1_6))
