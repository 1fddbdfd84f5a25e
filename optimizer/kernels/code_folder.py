"""Finds the folder where compiled code is kept from one run to the next.

Whoever writes there decides what the next run executes. So a folder of another user, or one that
others may write to, is neither used nor read.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def code_folder(sources: Path, configured: str, name: str) -> tuple[Path | None, str]:
    """(the folder called `name`, which is made where it is not there; ""), or (None, why there is
    none that can be used). configured: the user's own choice of where to keep code; "": none."""
    reasons = []
    for base, is_the_sources in _bases(sources, configured):
        folder = base / name
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            # Whoever owns the sources decides what is executed in any case.
            owners = {0, os.geteuid(), *({sources.stat().st_uid} if is_the_sources else ())}
            if not is_the_sources:
                _require_theirs(base, base.stat(), owners)
            _require_theirs(folder, folder.lstat(), owners)
            with tempfile.TemporaryFile(dir=folder):
                return folder, ""
        except OSError as error:
            reasons.append(f"{error.filename or folder}: {error.strerror or error}")
    return None, "; ".join(reasons) or "this user has no home"


def _bases(sources: Path, configured: str) -> Iterator[tuple[Path, bool]]:
    """(where such a folder may be, whether that is beside the sources), the best first."""
    if configured:
        yield Path(configured), False
        return
    if os.access(sources, os.W_OK):
        yield sources / "__pycache__", True
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        yield (Path(caches) if caches else Path.home() / ".cache") / "placewire", False
    except RuntimeError:  # There is no home.
        return


def _require_theirs(folder: Path, status: os.stat_result, owners: set[int]) -> None:
    """Raises OSError."""
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENOTDIR, "it is no folder", str(folder))
    if status.st_uid not in owners:
        raise OSError(errno.EPERM, f"it is another user's ({status.st_uid})", str(folder))
    if status.st_mode & 0o022:
        raise OSError(errno.EPERM, "other users may write to it", str(folder))
