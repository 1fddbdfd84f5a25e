"""Says whether a measured graph still holds on this machine; a program that runs on servers.

It reads the graph's notes as JSON on standard input, and writes a JSON list of what has changed to
standard output. It loads no torch, because it runs before every use of a kept graph.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from placewire.optimizer.profile.processor import processor_model


def main() -> int:
    print(json.dumps(list(changes(json.load(sys.stdin)))))
    return 0


def changes(notes: Mapping[str, Any]) -> Iterator[str]:
    """Describes what differs from when the graph was captured and measured."""
    if notes.get("processor") != (here := processor_model()):
        yield f"the processor is {here}, it was {notes.get('processor')}"
    if _release(notes.get("torch", "")) != _release(version := importlib.metadata.version("torch")):
        yield f"torch is {version}, it was {notes.get('torch')}"
    sources = notes.get("sources", {})
    if not sources:
        yield "the graph does not say which source files it was captured from"
    for file, digest in sources.items():
        path = Path(file)
        if not path.is_file():
            yield f"{file} is gone"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"{file} has changed"


def _release(version: str) -> str:
    """Drops the build: torch itself may say `2.13.0+cpu` where its package says `2.13.0`."""
    return version.partition("+")[0]


if __name__ == "__main__":
    sys.exit(main())
