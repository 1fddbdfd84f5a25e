"""Reads and writes the file of a trained policy: a JSON header and plain arrays in an npz archive.

The file is read without pickle, so that a file from elsewhere can run no code. Arrays that do not
match the header are refused before a network takes them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.engines.refusals import EngineRefusedError

FORMAT, VERSION = "placewire policy", 1
# The limit of all arrays together, unpacked: many times the largest policy that the engines make.
MOST_BYTES = 2**28
_HEADER = "header"

Arrays = Mapping[str, NDArray[np.float32]]


class PolicyFileError(EngineRefusedError):
    """The file is no policy, or not one that can be used here; the message says what it is."""


@dataclass(frozen=True)
class PolicyFile:
    """facts: what the engine needs to make the networks again, as JSON; trained: what the policy
    was trained on, in words."""

    engine: str
    devices: int
    facts: Mapping[str, Any]
    trained: str
    arrays: Arrays


def save_policy(policy: PolicyFile, path: Path) -> None:
    header = {
        "format": FORMAT, "version": VERSION, "engine": policy.engine, "devices": policy.devices,
        "facts": policy.facts, "trained": policy.trained,
    }  # fmt: skip
    arrays: dict[str, Any] = {f"array.{name}": array for name, array in policy.arrays.items()}
    arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def load_policy(path: Path, engine: str, devices: int) -> PolicyFile:
    """Raises OSError, and PolicyFileError for a file that is no policy of this engine, version and
    number of devices."""
    with path.open("rb") as file:
        try:
            version, found = _parsed(file)
        except Exception as error:  # archive, compression, array and JSON each raise their own
            raise not_a_policy(path, engine) from error
    if version != VERSION:
        raise PolicyFileError(
            f"{path}: is a policy of version {version}, and this release reads version {VERSION}; "
            "train it anew"
        )
    if found.engine != engine:
        raise PolicyFileError(
            f"{path}: is a policy of engine {found.engine}, and {engine} was asked for"
        )
    if found.devices != devices:
        raise PolicyFileError(
            f"{path}: is a policy for {found.devices} devices, and the cluster has {devices}; a "
            "policy needs as many devices as it was trained with"
        )
    return found


def not_a_policy(path: Path, engine: str) -> PolicyFileError:
    return PolicyFileError(
        f"{path}: is no trained policy; --engine {engine} writes one with --save-policy"
    )


def refuse_other_arrays(path: Path, wanted: Mapping[str, tuple[int, ...]], arrays: Arrays) -> None:
    """wanted: the shapes of the arrays of the networks that the header describes. Raises
    PolicyFileError where `arrays` has others, or numbers that are not finite."""
    for name in (*wanted, *arrays):
        has = arrays[name].shape if name in arrays else None
        if has != wanted.get(name):
            raise PolicyFileError(
                f"{path}: array {name} has the shape {has}, and the network of its header has "
                f"{wanted.get(name)}; the file was changed, or cut short"
            )
        if not np.isfinite(arrays[name]).all():
            raise PolicyFileError(f"{path}: array {name} has numbers that are not finite")


def _parsed(file: BinaryIO) -> tuple[int, PolicyFile]:
    """(version, policy). Raises whatever a damaged file makes its readers raise."""
    held = _read(file)
    header = json.loads(held.pop(_HEADER).tobytes())
    if header["format"] != FORMAT:
        raise ValueError("another format")
    found = PolicyFile(
        engine=str(header["engine"]),
        devices=int(header["devices"]),
        facts=dict(header["facts"]),
        trained=str(header["trained"]),
        arrays={name.removeprefix("array."): array for name, array in held.items()},
    )
    return int(header["version"]), found


def _read(file: BinaryIO) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
            raise ValueError("larger than any policy")
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    for name, array in held.items():
        if array.dtype != (np.uint8 if name == _HEADER else np.float32):
            raise ValueError(f"{name} is of type {array.dtype}")
    return held
