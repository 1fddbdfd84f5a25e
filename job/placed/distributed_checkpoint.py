"""Reads tensors of a folder of torch.distributed.checkpoint, by torch's own reader and planner."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import IO

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from placewire.job.placed.distributed_metadata import read_metadata
from placewire.job.placed.pickle_tuples import require_hashable_archive
from placewire.job.placed.tensor_header import TensorFileError, in_brief


class DistributedCheckpoint:
    """shapes: of the tensors, by name. What else the folder has beside them is not read."""

    def __init__(self, metadata_file: Path) -> None:
        """metadata_file: in the folder. Raises OSError, and TensorFileError where it does not
        hold, or a file that it names is missing or has become shorter."""
        self._folder = folder = metadata_file.parent
        metadata = read_metadata(metadata_file.resolve())
        self._entries = {
            name: entry
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        self.shapes = {name: tuple(entry.size) for name, entry in self._entries.items()}
        ends = defaultdict[str, int](int)
        for place in metadata.storage_data.values():
            ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
        for name, end in ends.items():
            if not (folder / name).is_file():
                raise TensorFileError(f"{folder} lacks {name}, which {metadata_file.name} names")
            if (size := (folder / name).stat().st_size) < end:
                raise TensorFileError(f"{folder / name} has {size} bytes of at least {end}")
        self._reader = _Reader(folder)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    def read(self, name: str, rows: slice | None) -> torch.Tensor:
        """Returns the tensor, or those rows of it, of whichever parts it was saved in. Raises
        OSError or TensorFileError."""
        entry = self._entries[name]
        begin, shape = [0] * len(entry.size), list(entry.size)
        if rows is not None:
            begin[0], shape[0] = rows.start, rows.stop - rows.start
        asked = ChunkStorageMetadata(torch.Size(begin), torch.Size(shape))
        items = create_read_items_for_chunk_list(name, entry, [asked])
        where = f"{self._folder}: {name}"
        if sum(math.prod(item.lengths) for item in items) != math.prod(shape):
            raise TensorFileError(f"{where} is there in part only, or some of it twice")
        try:
            found = torch.zeros(shape, dtype=entry.properties.dtype)
            self._reader.read_data(LoadPlan(items), _Into(found)).wait()
            return found
        except OSError:
            raise
        except Exception as error:  # Archive, pickle and tensors each raise their own.
            raise TensorFileError(f"{where} cannot be read: {in_brief(error)}") from error


class _Reader(FileSystemReader):
    def _slice_file(self, file: IO[bytes], sinfo: _StorageInfo) -> IO[bytes]:
        part: IO[bytes] = super()._slice_file(file, sinfo)
        require_hashable_archive(part)
        return part


class _Into(DefaultLoadPlanner):
    """Reads all parts into one tensor, which may be some rows of the whole."""

    def __init__(self, found: torch.Tensor) -> None:
        super().__init__()
        self._found = found

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._found
