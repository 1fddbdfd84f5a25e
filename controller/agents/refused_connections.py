"""Tells and records which connections were turned away and why, each once, in a bounded file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

# The same refusal is told once, and no more than this many different ones are told.
_MOST_TOLD = 256
_LONGEST = 300
# The file's name in a controller's state folder.
FILE = "refused.jsonl"
# At this size the file is renamed to FILE.1, in place of the former FILE.1.
_LARGEST_FILE_BYTES = 1024 * 1024


class RefusedConnections:
    """file: gets a JSON object a line, readable by its owner alone; None: no file. say: called with
    each refusal as one line. told: these lines."""

    def __init__(
        self, file: Path | None = None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._file, self._say = file, say
        self.told: list[str] = []

    def note(self, address: str, why: str) -> None:
        """address: of the peer. why: may quote what the peer sent, so it is shortened, and what
        cannot be printed is replaced."""
        line = f"{address}: {_printable(why)}"
        if line in self.told or len(self.told) >= _MOST_TOLD:
            return
        self.told.append(line)
        self._say(f"turned away: {line}")
        if self._file is not None:
            try:
                _append(self._file, address, _printable(why))
            except OSError as error:
                self._say(f"{self._file}: this refusal could not be recorded: {error.strerror}")


def _printable(text: str) -> str:
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return "".join(c if c.isprintable() else "?" for c in cut)


def _append(file: Path, address: str, why: str) -> None:
    if file.exists() and file.stat().st_size > _LARGEST_FILE_BYTES:
        file.replace(file.with_name(file.name + ".1"))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a") as out:
        out.write(json.dumps({"unix_seconds": time.time(), "from": address, "why": why}) + "\n")
