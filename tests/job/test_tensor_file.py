"""Files of tensors: what is written comes back; what does not hold is refused before it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import open_folder
from placewire.job.placed import tensor_file
from placewire.job.placed.tensor_file import (
    DTYPES,
    TensorFile,
    TensorFileError,
    overwrite,
    write_tensors,
)


def written(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    descriptor = open_folder(folder)
    try:
        write_tensors(descriptor, "rank0.safetensors", tensors)
    finally:
        os.close(descriptor)
    return folder / "rank0.safetensors"


def made(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """Writes a file by hand. header: JSON or bytes. length: what the file says of the header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    said = (len(text) if length is None else length).to_bytes(8, "little")
    file = folder / "made.safetensors"
    file.write_bytes(said + text + data)
    return file


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_comes_back_to_the_bit(tmp_path: Path, name: str) -> None:
    dtype = DTYPES[name]
    plain = torch.arange(-6, 6, dtype=torch.float64).reshape(3, 4)
    tensors = {
        "matrix": plain.to(dtype),
        "its transpose": plain.to(dtype).t(),
        "scalar": plain[1, 1].to(dtype),
        "nothing": plain[:0].to(dtype),
    }
    with TensorFile(written(tmp_path, tensors)) as file:
        assert list(file.entries) == list(tensors)
        for key, value in tensors.items():
            found = file.read(key)
            assert found.dtype == dtype and found.shape == value.shape
            ours, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found, value))
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shape", [(4, 1), (1, 3), (1, 1)])
def test_an_expanded_tensor_is_overwritten_too(shape: tuple[int, int]) -> None:
    """Several of its elements share memory."""
    tensor, value = torch.zeros(shape).expand(4, 3), torch.rand(shape).expand(4, 3)
    overwrite(tensor, value.contiguous())
    assert torch.equal(tensor, value)


def entry(**change: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}


EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (b"not JSON", b"", "no JSON"),
        (b"[" * 100_000, b"", "no JSON"),
        ([1], b"", "no JSON object"),
        ({"a": 3}, b"", "a: "),
        ({"a": entry(more=1)}, EIGHT, "more"),
        ({"a": entry(dtype="O")}, EIGHT, "unknown type 'O'"),
        ({"a": entry(shape=[-2])}, EIGHT, "negative|would"),
        ({"a": entry(shape=[-1, -2])}, EIGHT, "negative"),
        ({"a": entry(shape=[3])}, EIGHT, "'a' lies from byte 0 to 8"),
        ({"a": entry(shape=[2**60, 4])}, EIGHT, "'a' lies"),
        ({"a": entry(shape=[2**62, 4])}, EIGHT, "extents of 'a' are larger"),
        ({"a": entry(shape=[1] * 65)}, EIGHT, "shape"),
        ({"a": entry(data_offsets=[-8, 0])}, EIGHT, "'a' lies"),
        ({"a": entry(data_offsets=[4, 12])}, bytes(12), "'a' lies"),
        ({"a": entry(), "b": entry()}, EIGHT, "lies from byte 0 to 8"),
        ({"a": entry()}, bytes(7), "the file has 7 for them"),
        ({"a": entry()}, bytes(9), "the file has 9 for them"),
        ({}, EIGHT, "the file has 8 for them"),
    ],
)
def test_a_header_that_does_not_hold_is_refused(
    tmp_path: Path, header: Any, data: bytes, why: str
) -> None:
    with pytest.raises(TensorFileError, match=why):
        TensorFile(made(tmp_path, header, data))


@pytest.mark.parametrize("length", [1_000, 2**63, 100_000_001])
def test_a_header_longer_than_its_file_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(TensorFileError, match="header would have"):
        TensorFile(made(tmp_path, {}, length=length))


@pytest.mark.parametrize("content", [b"", b"\1\2\3"])
def test_a_file_of_a_few_bytes_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "short"
    file.write_bytes(content)
    with pytest.raises(TensorFileError):
        TensorFile(file)


def test_a_bool_is_0_or_1(tmp_path: Path) -> None:
    file = made(tmp_path, {"a": entry(dtype="BOOL", data_offsets=[0, 2])}, b"\1\7")
    with TensorFile(file) as opened, pytest.raises(TensorFileError, match="above 1"):
        opened.read("a")


def test_what_is_no_ordinary_file_is_not_opened(tmp_path: Path) -> None:
    """A named pipe would block for ever, and a link leads out of the folder."""
    file = written(tmp_path, {"a": torch.zeros(2)})
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(OSError):
            TensorFile(tmp_path / name)


def test_a_type_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorFileError, match=r"odd is .*sparse_coo"):
        written(tmp_path, {"odd": torch.eye(2).to_sparse()})


def test_who_writes_is_told_what_is_on_disk_also_within_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(tensor_file, "_SYNC_BYTES", 100)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    tensors = {"a": torch.arange(60.0), "none": torch.zeros(0), "b": torch.arange(20.0)}
    told: list[int] = []
    folder = open_folder(tmp_path)
    write_tensors(folder, "rank0.safetensors", tensors, told.append)
    os.close(folder)
    assert told == [100, 200, 320] and len(synced) == 3
    with TensorFile(tmp_path / "rank0.safetensors") as file:
        assert all(torch.equal(file.read(name), value) for name, value in tensors.items())
