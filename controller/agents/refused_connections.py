"""Who was turned away, and why: told once, and kept in a file that only grows so far."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

# Who asks again and again is told once; who varies what they say is not told for ever.
_MOST_TOLD = 256
_LONGEST = 300
# Of a controller's state folder.
FILE = "refused.jsonl"
# It is put aside at this size, and the one put aside before is removed.
_LARGEST_FILE_BYTES = 1024 * 1024


def _nobody(text: str) -> None:
    return None


class TurnedAway:
    """file: a line each, for its owner alone; None: no file. say: told each as one line."""

    def __init__(self, file: Path | None = None, say: Callable[[str], None] = _nobody) -> None:
        self._file, self._say = file, say
        self.told: list[str] = []

    def note(self, address: str, why: str) -> None:
        """address: where from. why: may hold what they sent: only what can be printed is kept."""
        line = f"{address}: {_printable(why)}"
        if line in self.told or len(self.told) >= _MOST_TOLD:
            return
        self.told.append(line)
        self._say(f"turned away: {line}")
        if self._file is not None:
            try:
                _append(self._file, address, _printable(why))
            except OSError as error:
                self._say(f"{self._file}: that could not be noted: {error.strerror}")


def _printable(text: str) -> str:
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return "".join(c if c.isprintable() else "?" for c in cut)


def _append(file: Path, address: str, why: str) -> None:
    if file.exists() and file.stat().st_size > _LARGEST_FILE_BYTES:
        file.replace(file.with_name(file.name + ".1"))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a") as out:
        out.write(json.dumps({"unix_seconds": time.time(), "from": address, "why": why}) + "\n")
