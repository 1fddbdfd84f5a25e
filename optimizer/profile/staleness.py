"""Whether a measured graph still stands on this machine: a program of its own, for servers.

On standard input the graph's notes, as JSON; on standard output a JSON list of what is no longer
as they say, empty where all is. Loads no torch: it is asked before every use of a kept graph.
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
    """What differs from when the graph was captured and measured, in words."""
    if notes.get("processor") != (here := processor_model()):
        yield f"the processor is {here}, it was {notes.get('processor')}"
    if _release(notes.get("torch", "")) != _release(version := importlib.metadata.version("torch")):
        yield f"torch is {version}, it was {notes.get('torch')}"
    sources = notes.get("sources", {})
    if not sources:
        yield "nothing says which source files it was captured from"
    for file, digest in sources.items():
        path = Path(file)
        if not path.is_file():
            yield f"{file} is gone"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"{file} has changed"


def _release(version: str) -> str:
    """Without the build: torch itself says `2.13.0+cpu` where its package may say `2.13.0`."""
    return version.partition("+")[0]


if __name__ == "__main__":
    sys.exit(main())
