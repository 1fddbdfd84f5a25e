"""Files that commands write for a plan, one a run, in the plan's own folder; the newest are kept.

Who writes a file holds a lock on it, so that others know when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_KEPT = 20
# What the name of a file begins and ends with before it has its own.
_UNNAMED, _NEW = ".unnamed-", ".new"


def new_file(folder: Path, plan_name: str, suffix: str) -> tuple[Path, int]:
    """Makes a new file; only this user may read it. Returns its path, and it open for reading and
    writing, with the lock held. Of the former ones with this suffix the newest stay. Raises
    OSError."""
    own = folder / plan_name
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone_in(own):
        path, descriptor = _made(own, suffix)
    with suppress(OSError):  # An old file that stays harms nothing.
        for former in files_of(folder, plan_name, suffix)[:-_KEPT]:
            if not is_written(former):
                former.unlink()
    return path, descriptor


@contextmanager
def _alone_in(own: Path) -> Iterator[None]:
    """Commands of one plan make their files one after another. Removes what one left that was
    killed meanwhile; a file system without locks has no such order, and keeps that. Raises
    OSError."""
    folder = os.open(own, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
            for left in own.glob(f"{_UNNAMED}*{_NEW}"):
                left.unlink()
        yield
    finally:
        os.close(folder)


def _made(own: Path, suffix: str) -> tuple[Path, int]:
    """The file has its lock before it has its name: whoever finds it finds it written. To be called
    in _alone_in: a name that is free stays so."""
    descriptor, unnamed = tempfile.mkstemp(dir=own, prefix=_UNNAMED, suffix=_NEW)
    try:
        with suppress(OSError):  # Without it nobody can follow the file.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name = time.strftime("%Y-%m-%dT%H-%M-%S")
        numbers = ("", *(f"-{number}" for number in range(2, 2 + sum(1 for _ in own.iterdir()))))
        named = (own / f"{name}{number}{suffix}" for number in numbers)
        path = next(one for one in named if not os.path.lexists(one))
        return Path(unnamed).rename(path), descriptor
    except BaseException:
        os.close(descriptor)
        Path(unnamed).unlink(missing_ok=True)
        raise


def files_of(folder: Path, plan_name: str, suffix: str) -> list[Path]:
    """Oldest first. Only files of the plan's folder itself count, and no links; what another
    command removes meanwhile is passed over."""
    aged: list[tuple[int, int, str, Path]] = []
    for path in (folder / plan_name).glob(f"*{suffix}"):
        with suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                # Within a tick of the kernel's clock, the number in the name tells which is later.
                aged.append((found.st_mtime_ns, len(path.name), path.name, path))
    return [path for *_, path in sorted(aged)]


def is_written(path: Path) -> bool:
    """Whether somebody writes it; nobody writes what another command has removed. Raises
    OSError."""
    try:
        with path.open("rb") as file:
            return not nobody_writes(file.fileno())
    except FileNotFoundError:
        return False


def nobody_writes(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
