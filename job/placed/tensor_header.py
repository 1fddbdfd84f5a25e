"""Reads the header of a file of named tensors (job/placed/tensor_file.py), without torch.

A file may come from somebody else, so that everything that its header says is checked against the
file's length before a tensor is read.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, TypeAdapter, ValidationError

from placewire.frozen import Frozen, place_of
from placewire.job.contract.checkpoint import MOST_VALUES, open_file, values_in

LENGTH_BYTES = 8
# Also of a tensor without elements, whose strides count what its other extents would hold.
MOST_ELEMENTS = 2**63 - 1
ABOUT = "__metadata__"
# Of an element, by its type's name in the file.
ELEMENT_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F8_E4M3": 1, "F8_E5M2": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 8, "C128": 16,
}  # fmt: skip
_LARGEST_HEADER_BYTES = 100_000_000
_LONGEST_SAID = 300


class TensorFileError(ValueError):
    """A file is no file of tensors, or has not the tensor that was asked for."""


class Entry(Frozen):
    """A tensor's place. data_offsets: first byte and first byte behind it, after the header."""

    dtype: str
    shape: tuple[int, ...] = Field(max_length=64)
    data_offsets: tuple[int, int]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


_ENTRIES: TypeAdapter[dict[str, Entry]] = TypeAdapter(dict[str, Entry])


class TensorHeader:
    """An open file whose header holds. entries: by name. data: where the tensors' bytes begin."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and TensorFileError where the file is no file of tensors."""
        self.path = path
        self.stream: io.BufferedReader = os.fdopen(open_file(path), "rb")
        try:
            self.data, self.entries = _header(self.stream)
        except ValueError as error:
            self.stream.close()
            raise TensorFileError(f"{path} is no file of tensors: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()


def in_brief(said: object) -> str:
    """Returns the beginning of what a file, or an error about it, says, for messages."""
    line = str(said).strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_SAID else f"{line[:_LONGEST_SAID]}…"


def _header(stream: io.BufferedReader) -> tuple[int, dict[str, Entry]]:
    """Returns (where the tensors' bytes begin, the entries by name). Raises ValueError."""
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    begin = LENGTH_BYTES + length
    if size < LENGTH_BYTES or begin > size or length > _LARGEST_HEADER_BYTES:
        raise ValueError(f"its header would have {length} bytes, and the file has {size}")
    header = stream.read(length)
    if (values := values_in(header)) > MOST_VALUES:
        raise ValueError(f"its header has up to {values} JSON values, at most {MOST_VALUES} fit")
    try:
        document = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is no JSON") from error
    if not isinstance(document, dict):
        raise ValueError("its header is no JSON object")
    document.pop(ABOUT, None)
    try:
        entries = _ENTRIES.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = place_of(first["loc"])
        raise ValueError(f"its header: {place}: {first['msg']}") from error
    _require_tiled(entries, size - begin)
    return begin, entries


def _require_tiled(entries: Mapping[str, Entry], size_bytes: int) -> None:
    """Requires that the tensors fill the file, each with the bytes that its type and shape need."""
    place = 0
    for name, entry in sorted(entries.items(), key=lambda one: one[1].data_offsets):
        if entry.dtype not in ELEMENT_BYTES:
            raise ValueError(f"{name!r} has the unknown type {entry.dtype!r}")
        if any(extent < 0 for extent in entry.shape):
            raise ValueError(f"{name!r} has a negative extent")
        if math.prod(extent for extent in entry.shape if extent) > MOST_ELEMENTS:
            raise ValueError(f"the extents of {name!r} are larger than those of any tensor")
        begin, end = entry.data_offsets
        if begin != place or end - begin != entry.bytes:
            raise ValueError(
                f"{name!r} lies from byte {begin} to {end}; by the tensor before it, its type and "
                f"its shape it would from {place} to {place + entry.bytes}"
            )
        place = end
    if place != size_bytes:
        raise ValueError(f"its tensors have {place} bytes, and the file has {size_bytes} for them")
