"""Writes and reads a file of named tensors, which is data and nothing else.

The layout is that of safetensors (https://github.com/huggingface/safetensors, "Format"), so that
other programs read it, too: the header's length as 8 bytes (little-endian), the header as JSON with
type, shape and place of each tensor, then the tensors' bytes in row-major order without gaps. Types
that the format does not have get names of their own (C128).

A file may come from somebody else, so that everything that its header says is checked against the
file's length before a tensor is read.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, TypeAdapter, ValidationError

from placewire.frozen import Frozen, place_of
from placewire.job.contract.checkpoint import MOST_VALUES, open_file, values_in

_LENGTH_BYTES = 8
_ALIGNMENT_BYTES = 8
# So much is brought to disk at once. What waits in memory until the end takes minutes then.
_SYNC_BYTES = 256 << 20
# Also of a tensor without elements, whose strides count what its other extents would hold.
MOST_ELEMENTS = 2**63 - 1
_LARGEST_HEADER_BYTES = 100_000_000
_ABOUT = "__metadata__"
_LONGEST_SAID = 300
DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorFileError(ValueError):
    """A file is no file of tensors, or has not the tensor that was asked for."""


class Entry(Frozen):
    """A tensor's place. data_offsets: first byte and first byte behind it, after the header."""

    dtype: str
    shape: tuple[int, ...] = Field(max_length=64)
    data_offsets: tuple[int, int]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


_ENTRIES: TypeAdapter[dict[str, Entry]] = TypeAdapter(dict[str, Entry])


def require_writable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises TensorFileError, which names a tensor whose type cannot be written."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise TensorFileError(f"{name} is {kind}, {tensor.layout}, which cannot be saved")


def write_tensors(
    folder: int,
    name: str,
    tensors: Mapping[str, torch.Tensor],
    on_disk: Callable[[int], None] = lambda written_bytes: None,
) -> None:
    """Writes a file that does not exist yet, and brings it to disk. folder: its descriptor.
    on_disk: is told again and again how many bytes of tensors are there. Raises OSError, and
    TensorFileError where a tensor's type cannot be written."""
    require_writable(tensors)
    entries, place = {}, 0
    for key, tensor in tensors.items():
        size = tensor.numel() * tensor.dtype.itemsize
        entries[key] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    header = json.dumps({_ABOUT: {"format": "pt"}, **entries}).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "wb") as stream:
        stream.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
        stream.write(header)
        written = synced = 0
        for tensor in tensors.values():
            data = memoryview(_bytes_of(tensor))
            for start in range(0, len(data), _SYNC_BYTES):
                written += stream.write(data[start : start + _SYNC_BYTES])
                if written - synced >= _SYNC_BYTES:
                    stream.flush()
                    os.fdatasync(stream.fileno())
                    synced = written
                    on_disk(synced)
        stream.flush()
        os.fsync(stream.fileno())


class TensorFile:
    """An open file whose header holds."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and TensorFileError where the file is no file of tensors."""
        self.path = path
        self._stream: io.BufferedReader = os.fdopen(open_file(path), "rb")
        try:
            self._data, self.entries = _header(self._stream)
        except ValueError as error:
            self._stream.close()
            raise TensorFileError(f"{path} is no file of tensors: {error}") from error

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Returns the tensor, or those rows of it, on the CPU. Raises OSError, and TensorFileError
        where the file has become shorter, the bytes are no values of the tensor's type, or memory
        is short."""
        entry = self.entries[name]
        skipped, size, shape = 0, entry.bytes, entry.shape
        if rows is not None:
            row = math.prod(shape[1:]) * entry.torch_dtype.itemsize
            skipped, size = rows.start * row, (rows.stop - rows.start) * row
            shape = (rows.stop - rows.start, *shape[1:])
        try:
            flat = torch.empty(size, dtype=torch.uint8)
        except RuntimeError as error:
            raise TensorFileError(
                f"{self.path}: {name} has {size} bytes, which this machine has no memory for"
            ) from error
        self._stream.seek(self._data + entry.data_offsets[0] + skipped)
        if self._stream.readinto(flat.numpy().data) != size:
            raise TensorFileError(f"{self.path} ends within {name}")
        found = flat.view(entry.torch_dtype).reshape(shape)
        require_bool(f"{self.path}: {name}", found)
        return found


def require_bool(where: str, tensor: torch.Tensor) -> None:
    """Raises TensorFileError where it is bool by its type, and not by its bytes."""
    if tensor.dtype == torch.bool and bool((tensor.contiguous().view(torch.uint8) > 1).any()):
        raise TensorFileError(f"{where} is bool and has a byte above 1")


def in_brief(said: object) -> str:
    """Returns the beginning of what a file, or an error about it, says, for messages."""
    line = str(said).strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_SAID else f"{line[:_LONGEST_SAID]}…"


def described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Returns type and shape for messages, like float32[3, 4]."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _bytes_of(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()


def _header(stream: io.BufferedReader) -> tuple[int, dict[str, Entry]]:
    """Returns (where the tensors' bytes begin, the entries by name). Raises ValueError."""
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + length
    if size < _LENGTH_BYTES or begin > size or length > _LARGEST_HEADER_BYTES:
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
    document.pop(_ABOUT, None)
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
        if entry.dtype not in DTYPES:
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
