"""A policy file that is damaged, or made to be hostile, is refused in words."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from placewire.optimizer.published.learned.policy_file import PolicyFileError, load_policy

HEADER = {
    "format": "placewire policy", "version": 1, "engine": "hsdag", "devices": 2, "facts": {},
    "trained": "x",
}  # fmt: skip


def archive(header: bytes) -> bytes:
    made = io.BytesIO()
    np.savez(made, header=np.frombuffer(header, dtype=np.uint8))
    return made.getvalue()


def flagged(offset: int, value: int) -> bytes:
    """The local and the central header of the only member, with a byte of each replaced; offset:
    in the local header, which in the central one is two bytes further on."""
    made = bytearray(archive(json.dumps(HEADER).encode()))
    made[offset] = made[made.index(b"PK\x01\x02") + offset + 2] = value
    return bytes(made)


def damaged_deflate() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", b"\x93NUMPY" + b"a" * 4000)
    packed = bytearray(made.getvalue())
    start = packed.index(b"header.npy") + len("header.npy")
    packed[start : start + 6] = b"\xff" * 6
    return bytes(packed)


def enormous() -> bytes:
    """An array whose header says that it has 2^52 numbers."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        made, {"descr": "|u1", "fortran_order": False, "shape": (2**52,)}
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("header.npy", made.getvalue())
    return packed.getvalue()


def test_a_good_one_is_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.npz"
    file.write_bytes(archive(json.dumps(HEADER).encode()))
    assert load_policy(file, "hsdag", 2).trained == "x"


@pytest.mark.parametrize(
    "held",
    [
        archive(json.dumps({**HEADER, "devices": float("inf")}).encode()),
        archive(json.dumps({**HEADER, "version": float("inf")}).encode()),
        archive(b"[" * 200_000),
        damaged_deflate(),
        flagged(8, 99),
        flagged(6, 1),
        enormous(),
    ],
    ids=["devices", "version", "deep", "deflate", "compression", "encrypted", "enormous"],
)
def test_a_damaged_one_is_refused(held: bytes, tmp_path: Path) -> None:
    file = tmp_path / "policy.npz"
    file.write_bytes(held)
    with pytest.raises(PolicyFileError, match=r"policy\.npz: is no trained policy"):
        load_policy(file, "hsdag", 2)


def test_one_that_is_not_there_is_an_error_of_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_policy(tmp_path / "nowhere.npz", "hsdag", 2)
