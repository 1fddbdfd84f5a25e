"""Writes a file of the cache as a whole, or not at all, and one command at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from placewire.controller.errors import PlacewireError

_LOOK_SECONDS = 0.1


@contextmanager
def written(file: Path) -> Iterator[None]:
    """Around what writes this file of the cache. Raises PlacewireError where it cannot."""
    try:
        yield
    except OSError as error:
        raise _unusable(file, error) from error


def is_whole(file: Path, load: Callable[[Path], object]) -> bool:
    """Whether the cache has this file, and it can be read: where the power went while it was being
    written, it may be empty, and is to be made anew. load: raises OSError or ValueError."""
    try:
        load(file)
    except (OSError, ValueError):
        return False
    return True


def write_cached(file: Path, text: str) -> None:
    """Replaces the file, which the decision in force may need. Raises PlacewireError where that
    cannot be done; the former one is then as it was."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")  # Two previews may run at a time.
    make_cache(file.parent)
    with written(file):
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)


@asynccontextmanager
async def made_by_one(file: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Holds a lock on what is made for this file, whichever process makes it: two that search for
    one placement may find different ones, of which servers would get one and ranks the other.
    on_wait: called once where another process is at it. The kernel frees the lock when its holder
    dies. Raises PlacewireError where it cannot be had."""
    lock = file.with_name(f"{file.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(lock, error) from error
    try:
        told = False
        while not _is_locked(descriptor, lock):
            if not told:
                on_wait()
            told = True
            await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, lock: Path) -> bool:
    """Raises PlacewireError where its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(lock, error) from error
    return True


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
