"""Writes and reads a file of named tensors, which is data and nothing else.

The layout is that of safetensors (https://github.com/huggingface/safetensors, "Format"), so that
other programs read it, too: the header's length as 8 bytes (little-endian), the header as JSON with
type, shape and place of each tensor, then the tensors' bytes in row-major order without gaps. Types
that the format does not have get names of their own (C128).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from placewire.job.placed.tensor_header import (
    ABOUT,
    LENGTH_BYTES,
    Entry,
    TensorFileError,
    TensorHeader,
)

__all__ = [
    "DTYPES", "Entry", "TensorFile", "TensorFileError", "described", "overwrite", "read_tensor",
    "require_bool", "require_writable", "write_tensors",
]  # fmt: skip

_ALIGNMENT_BYTES = 8
# So much is brought to disk at once. What waits in memory until the end takes minutes then.
_SYNC_BYTES = 256 << 20
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
    header = json.dumps({ABOUT: {"format": "pt"}, **entries}).encode()
    header += b" " * (-len(header) % _ALIGNMENT_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "wb") as stream:
        stream.write(len(header).to_bytes(LENGTH_BYTES, "little"))
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


class TensorFile(TensorHeader):
    """An open file whose header holds, and its tensors."""

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        return read_tensor(self, name, rows)


def read_tensor(file: TensorHeader, name: str, rows: slice | None) -> torch.Tensor:
    """Returns the tensor, or those rows of it, on the CPU. Raises OSError, and TensorFileError
    where the file has become shorter, the bytes are no values of the tensor's type, or memory
    is short."""
    entry = file.entries[name]
    dtype = DTYPES[entry.dtype]
    skipped, size, shape = 0, entry.bytes, entry.shape
    if rows is not None:
        row = math.prod(shape[1:]) * dtype.itemsize
        skipped, size = rows.start * row, (rows.stop - rows.start) * row
        shape = (rows.stop - rows.start, *shape[1:])
    try:
        flat = torch.empty(size, dtype=torch.uint8)
    except RuntimeError as error:
        raise TensorFileError(
            f"{file.path}: {name} has {size} bytes, which this machine has no memory for"
        ) from error
    file.stream.seek(file.data + entry.data_offsets[0] + skipped)
    if file.stream.readinto(flat.numpy().data) != size:
        raise TensorFileError(f"{file.path} ends within {name}")
    found = flat.view(dtype).reshape(shape)
    require_bool(f"{file.path}: {name}", found)
    return found


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """value: of the same shape. A buffer may be an expanded tensor, of which torch writes only
    elements that share no memory."""
    for dimension, stride in enumerate(tensor.stride()):
        if not stride and tensor.shape[dimension] > 1:
            tensor, value = tensor.narrow(dimension, 0, 1), value.narrow(dimension, 0, 1)
    tensor.copy_(value)


def require_bool(where: str, tensor: torch.Tensor) -> None:
    """Raises TensorFileError where it is bool by its type, and not by its bytes."""
    if tensor.dtype == torch.bool and bool((tensor.contiguous().view(torch.uint8) > 1).any()):
        raise TensorFileError(f"{where} is bool and has a byte above 1")


def described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Returns type and shape for messages, like float32[3, 4]."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _bytes_of(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()
