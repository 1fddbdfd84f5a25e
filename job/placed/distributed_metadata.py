"""Reads the `.metadata` of a folder of torch.distributed.checkpoint, of which nothing is run.

The file is a pickle, whose reader would call whatever it names. Here the classes that such a file
has are stood for by records that do nothing, and any other name ends the reading. What the records
say is checked before torch's own values are made of it.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from placewire.job.contract.checkpoint import open_file
from placewire.job.placed.pickle_tuples import require_hashable
from placewire.job.placed.tensor_header import MOST_ELEMENTS, TensorFileError, in_brief

_FILE = re.compile(r"__[0-9]+_[0-9]+\.distcp")
_MOST_EXTENTS = 64
# A million parts have about 200 MB.
_LARGEST_BYTES = 1 << 30


class _Record:
    """Stands for an object of the file. fields: what the file says of it."""

    fields: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, *arguments: object) -> _Record:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple):  # TensorProperties, of which the first matters.
            state = {"dtype": state[0] if state else None}
        if not isinstance(state, dict):
            raise ValueError(f"{type(self).__name__} has the fields {type(state).__name__}")
        self.fields = state


_METADATA = "torch.distributed.checkpoint.metadata"
_OF_SHARDED_TENSORS = "torch.distributed._shard.sharded_tensor.metadata"
_RECORDS = {
    (module, name): type(name, (_Record,), {})
    for module, name in (
        (_METADATA, "Metadata"),
        (_METADATA, "TensorStorageMetadata"),
        (_METADATA, "TensorProperties"),
        (_OF_SHARDED_TENSORS, "TensorProperties"),  # of torch 2.2 and before
        (_OF_SHARDED_TENSORS, "MEM_FORMAT_ENCODING"),
        (_METADATA, "BytesStorageMetadata"),
        (_METADATA, "ChunkStorageMetadata"),
        (_METADATA, "MetadataIndex"),
        (_METADATA, "StorageMeta"),
        (_METADATA, "_MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # of Python 3.13
    )
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch", "Size"):
            return torch.Size  # It takes numbers alone.
        # torch's getattr would import what is not imported yet.
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if (found := _RECORDS.get((module, name))) is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which it has no need of")
        return found


def read_metadata(file: Path) -> Metadata:
    """Returns its tensors alone: the entries are TensorStorageMetadata, and where each part of
    them lies. Raises OSError, and TensorFileError where the file does not hold."""
    try:
        with os.fdopen(open_file(file), "rb") as stream:
            content = stream.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise ValueError(f"it has more than {_LARGEST_BYTES} bytes")
        require_hashable(content)
        return _checked(_Unpickler(io.BytesIO(content)).load())
    except OSError:
        raise
    except Exception as error:  # What a damaged pickle asks for raises errors of any kind.
        raise TensorFileError(
            f"{file} is no metadata of torch.distributed.checkpoint: {in_brief(error)}"
        ) from error


def _checked(document: object) -> Metadata:
    """Raises ValueError."""
    whole = _fields(document, "Metadata")
    entries = {
        name: _tensor(entry)
        for name, entry in _dict(whole, "state_dict_metadata").items()
        if isinstance(name, str) and not isinstance(entry, _RECORDS[_METADATA, _BYTES])
    }
    stored = dict(_stored(_dict(whole, "storage_data")))
    for name, entry in entries.items():
        for chunk in entry.chunks:
            if MetadataIndex(name, chunk.offsets) not in stored:
                raise ValueError(f"no file has the part of {name} at {list(chunk.offsets)}")
    return Metadata(state_dict_metadata=dict(entries), storage_data=stored)


_BYTES = "BytesStorageMetadata"


def _tensor(entry: object) -> TensorStorageMetadata:
    fields = _fields(entry, "TensorStorageMetadata")
    dtype = _fields(fields.get("properties"), "TensorProperties").get("dtype")
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a tensor has no type but {type(dtype).__name__}")
    size, chunks = _extents(fields.get("size")), fields.get("chunks")
    if not isinstance(chunks, list):
        raise ValueError(f"a tensor has no parts but {type(chunks).__name__}")
    parts = [_fields(chunk, "ChunkStorageMetadata") for chunk in chunks]
    made = [
        ChunkStorageMetadata(_extents(part.get("offsets")), _extents(part.get("sizes")))
        for part in parts
    ]
    if any(len(part.offsets) != len(size) or len(part.sizes) != len(size) for part in made):
        raise ValueError("a part has another number of extents than its tensor")
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, made)


def _stored(entries: Mapping[Any, Any]) -> Iterator[tuple[MetadataIndex, _StorageInfo]]:
    """Where the parts of tensors lie; what else is stored has no offset."""
    for key, value in entries.items():
        index, info = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
        if (offset := index.get("offset")) is None:
            continue
        name, file = index.get("fqn"), info.get("relative_path")
        if not isinstance(name, str) or not isinstance(file, str) or not _FILE.fullmatch(file):
            raise ValueError(f"{str(file)[:100]!r} is no name of its files, like __0_0.distcp")
        if changed := info.get("transform_descriptors"):
            raise ValueError(f"{file} is packed by {in_brief(str(changed))}, which is not read")
        begin, length = info.get("offset"), info.get("length")
        if not _is_extent(begin) or not _is_extent(length):
            raise ValueError(f"the place of {name} in {file} is no number of bytes")
        yield MetadataIndex(name, _extents(offset)), _StorageInfo(file, begin, length)


def _fields(value: object, kind: str) -> Mapping[str, Any]:
    if not isinstance(value, _Record) or type(value).__name__ != kind:
        raise ValueError(f"it has {type(value).__name__} in place of {kind}")
    return value.fields


def _dict(fields: Mapping[str, Any], key: str) -> dict[Any, Any]:
    if not isinstance(value := fields.get(key), dict):
        raise ValueError(f"{key} is no dict")
    return value


def _extents(value: object) -> torch.Size:
    if (
        not isinstance(value, tuple)
        or len(value) > _MOST_EXTENTS
        or not all(map(_is_extent, value))
        or math.prod(extent for extent in value if extent) > MOST_ELEMENTS
    ):
        raise ValueError("the extents of a tensor are none")
    return torch.Size(value)


def _is_extent(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_ELEMENTS
