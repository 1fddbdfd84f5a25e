"""Digests that name cached results, of everything that a result was made from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import placewire.optimizer


def digest(question: object) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]


def optimizer_digest() -> str:
    """A digest of the optimizer's own code, so that no result of older code is used again."""
    whole = hashlib.sha256()
    for file in sorted(Path(placewire.optimizer.__path__[0]).rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()
