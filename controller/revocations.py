"""Which certificates were issued, and which of them no longer open the link."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Row:
    """Unix seconds."""

    name: str
    serial: str
    issued: float
    expires: float


class Revocations:
    """Two files beside the authority: `issued.jsonl`, a line per certificate, and `denied.json`,
    the serial numbers (decimal) that are turned away."""

    def __init__(self, directory: Path) -> None:
        self._issued, self._denied = directory / "issued.jsonl", directory / "denied.json"

    def record(self, name: str, serial: int, expires_unix: float) -> None:
        row = _Row(name, str(serial), time.time(), expires_unix)
        descriptor = os.open(self._issued, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a") as out:
            out.write(json.dumps(asdict(row)) + "\n")
            out.flush()
            os.fsync(out.fileno())

    def deny(self, name: str) -> int:
        """All that were issued to this name and have not expired; returns how many there are.
        What is issued to it afterwards is valid."""
        now = time.time()
        mine = {one.serial for one in self._rows() if one.name == name and one.expires > now}
        if mine:
            fresh = self._denied.with_suffix(".new")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as out:
                json.dump(sorted(self.denied | mine), out)
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self._denied)
        return len(mine)

    @property
    def denied(self) -> frozenset[str]:
        try:
            return frozenset(json.loads(self._denied.read_text()))
        except FileNotFoundError:
            return frozenset()

    def _rows(self) -> list[_Row]:
        try:
            lines = self._issued.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [_Row(**json.loads(line)) for line in lines]
