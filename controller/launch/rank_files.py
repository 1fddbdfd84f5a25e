"""The files that a rank's specification names, as they are copied to its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.job.contract.specification import ProgramSpec, RankSpec


@dataclass(frozen=True)
class RankFiles:
    """contents: by the file's name in the rank's folder on the server."""

    spec: ProgramSpec
    contents: Mapping[str, bytes]
    fields: Mapping[str, str]
    buckets: Mapping[str, str]

    def spec_in(self, folder: str) -> ProgramSpec:
        """The specification, which names the files in that folder."""
        paths: dict[str, Any] = {field: f"{folder}/{name}" for field, name in self.fields.items()}
        if self.buckets:
            paths["bucket_files"] = {b: f"{folder}/{name}" for b, name in self.buckets.items()}
        return self.spec.model_copy(update=paths)


def rank_files(spec: ProgramSpec) -> RankFiles:
    """Reads the files. Raises OSError."""
    contents: dict[str, bytes] = {}

    def read(path: str, called: str) -> str:
        name = called + "".join(Path(path).suffixes[-2:])
        contents[name] = Path(path).read_bytes()
        return name

    fields = {
        field: read(path, field.removesuffix("_file"))
        for field in ("placement_file", "graph_file")
        if (path := getattr(spec, field, None)) is not None
    }
    others = spec.bucket_files if isinstance(spec, RankSpec) else {}
    buckets = {bucket: read(path, f"bucket{k}") for k, (bucket, path) in enumerate(others.items())}
    return RankFiles(spec, contents, fields, buckets)
