"""What answers are kept under: everything that they were made from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import placewire.optimizer


def digest(question: object) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]


def optimizer_digest() -> str:
    """Changes when the optimizer's own code does: nothing that older code found is used again."""
    whole = hashlib.sha256()
    for file in sorted(Path(placewire.optimizer.__path__[0]).rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()
