"""Keeps measured profiles in files named by everything that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.measure import Profile

CACHE_VERSION = 6
_PLAIN = ("whole_step_seconds", "warm_up_steps", "samples", "program_bytes", "process_bytes")


@dataclass(frozen=True)
class ProfileKey:
    """samples, limit_seconds: as in Sampling."""

    structure_hash: str
    device_type: str
    processor: str
    accelerator: str
    threads: int
    torch: str
    samples: int
    limit_seconds: float

    @property
    def fields(self) -> Mapping[str, Any]:
        return {"version": CACHE_VERSION, **vars(self)}

    def file(self, folder: Path) -> Path:
        text = json.dumps(self.fields, sort_keys=True)
        return folder / f"profile-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def load_profile(folder: Path, key: ProfileKey, graph: OperatorGraph) -> Profile | None:
    """Returns None where there is no file, or where it does not fit the key; the caller then
    measures and replaces it."""
    file = key.file(folder)
    if not file.is_file():
        return None
    try:
        document = read_json(file)
        if document["key"] != key.fields:
            return None
        seconds, workspace = document["seconds"], document["workspace_bytes"]
        return Profile(
            seconds=np.array([seconds[identifier] for identifier in graph.ids]),
            workspace_bytes=np.array([workspace[identifier] for identifier in graph.ids]),
            **{name: document[name] for name in _PLAIN},
        )
    except (ValueError, KeyError, TypeError):
        return None


def save_profile(folder: Path, key: ProfileKey, graph: OperatorGraph, profile: Profile) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "key": dict(key.fields),
        "seconds": dict(zip(graph.ids, profile.seconds.tolist(), strict=True)),
        "workspace_bytes": dict(zip(graph.ids, profile.workspace_bytes.tolist(), strict=True)),
        **{name: getattr(profile, name) for name in _PLAIN},
    }
    write_json(key.file(folder), document)
