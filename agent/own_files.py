"""Opens files in folders of others, root's command in the agent's folder above all.

The owner of a folder decides what is in it. A link there leads to a file of somebody else, a pipe
may never answer, and a second name of somebody else's file is that file.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import IO, Any


def open_own(path: Path, mode: str, buffering: int = -1) -> IO[Any]:
    """Opens an ordinary file of its folder's owner. Raises OSError where a link, a pipe or the like
    has its name, or where it is another user's."""
    return open(path, mode, buffering, opener=_open_own)


def read_own(path: Path) -> bytes:
    """Raises OSError, as `open_own` does."""
    with open_own(path, "rb") as file:
        content: bytes = file.read()
    return content


def read_ordinary(path: Path) -> bytes:
    """Reads an ordinary file; links are followed where the folder is root's or this user's. Raises
    OSError, as `open_own` does in a folder of another user."""
    opener = _open_ordinary if path.parent.stat().st_uid in (0, os.geteuid()) else _open_own
    with open(path, "rb", opener=opener) as file:
        content: bytes = file.read()
    return content


def _open_own(path: str, flags: int) -> int:
    # Emptied once it is known whose it is.
    descriptor = _open_ordinary(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW)
    owner, folder = os.fstat(descriptor).st_uid, Path(path).parent.stat().st_uid
    if owner != folder:
        os.close(descriptor)
        names = f"is user {name_of(owner)}'s in a folder of user {name_of(folder)}"
        raise OSError(errno.EINVAL, f"{names}: look who put it there; remove it or chown it", path)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def _open_ordinary(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        # A link; a pipe that nobody reads, or a socket.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_ordinary(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_ordinary(path)
    return descriptor


def _not_ordinary(path: str) -> OSError:
    what = "is no ordinary file, so it is not the agent's: look who put it there, and remove it"
    return OSError(errno.EINVAL, what, path)


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
