"""Writes a file of the cache as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from placewire.controller.errors import PlacewireError


def write_cached(file: Path, text: str) -> None:
    """Replaces the file, which the decision in force may need. Raises PlacewireError where that
    cannot be done; the former one is then as it was."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")  # Two previews may run at a time.
    make_cache(file.parent)
    try:
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(file, error) from error


def make_cache(folder: Path) -> None:
    """Raises PlacewireError where there is none and none can be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(place: Path, error: OSError) -> PlacewireError:
    return PlacewireError(
        f"the cache cannot be written: {error.strerror}",
        where=str(place),
        remedy="free space on its disk, or see who owns its folder; or give another --state-dir",
    )
