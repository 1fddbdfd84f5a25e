"""Writes a run's report to a file of its own, where the journal cannot take it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path


def write_elsewhere(plan_name: str, document: str, folders: Iterable[Path]) -> Path | None:
    """The new file, in the first folder that takes the whole document; None: no folder does. Only
    its owner can read it."""
    when = time.strftime("%Y-%m-%dT%H-%M-%S")
    for folder in folders:
        file = folder / f"{plan_name}-{when}-{os.getpid()}.run.json"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            continue
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                out.write(document)
                out.flush()
                os.fsync(descriptor)
        except OSError:
            file.unlink(missing_ok=True)
        else:
            return file
    return None
