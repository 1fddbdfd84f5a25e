"""Reads the tensors of a whole checkpoint, whichever of its files they are in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from placewire.job.contract.checkpoint import Checkpoint
from placewire.job.placed.tensor_file import TensorFile, TensorFileError, described


class SavedTensors:
    """The tensors of some open files, by name. Ranks that held the same tensor all saved it."""

    def __init__(self, files: list[TensorFile]) -> None:
        self._file_of: dict[str, TensorFile] = {}
        for file in files:
            for name in file.entries:
                self._file_of.setdefault(name, file)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor, on the CPU. Raises OSError or TensorFileError."""
        return self._file_with(name).read(name)

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
