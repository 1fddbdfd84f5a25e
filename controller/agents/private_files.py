"""Writes files that nobody but their owner may replace, and mostly that only the owner may read."""

from __future__ import annotations

import os
from pathlib import Path


def make_own(folder: Path) -> None:
    """Makes the folder where there is none. Raises OSError, also where it is another user's, who
    could replace what is written there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise PermissionError(1, "the folder is another user's", str(folder))


def write_private(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces the file as a whole; at no moment can anybody else read the content."""
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    # O_EXCL refuses a file or a link that somebody else put there meanwhile.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)
