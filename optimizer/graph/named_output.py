"""Opens what a user names for a result where nothing may take its place: a device, a pipe, or an
open file of this process. Root could replace even /dev/null and /dev/stdout by files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# The kernel follows no more links than these.
_MOST_LINKS = 40


def open_stream(path: Path) -> BinaryIO | None:
    """A stream into what is at `path`, behind its links; None where a file is there, or nothing.
    Raises OSError, also for a folder, a socket and a disk."""
    descriptor = _own_descriptor(path)
    if descriptor is not None:
        # A new opening of /dev/stdout would begin at the first byte of the file behind it.
        return os.fdopen(os.dup(descriptor), "wb")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return None
    if not is_stream(mode):
        raise OSError(errno.EINVAL, NO_OUTPUT, str(path))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb")


def why_not(path: Path) -> str | None:
    """Why no result can be written to what a user names, as words that follow the name; None where
    it can. To be asked before the work whose result it is."""
    try:
        if _own_descriptor(path) is not None:
            return None
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG
        if stat.S_ISDIR(mode):
            return "is a folder; name a file in it"
        if not stat.S_ISREG(mode):
            if not is_stream(mode):
                return NO_OUTPUT
            return None if os.access(path, os.W_OK) else "cannot be written to"
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            return f"there is no folder {folder}; make it first"
        # A file is replaced, so that its own mode does not matter.
        return None if os.access(folder, os.W_OK | os.X_OK) else "its folder cannot be written to"
    except OSError as error:
        return str(error.strerror)


NO_OUTPUT = "is a folder, a socket or a disk; name a file"


def is_stream(mode: int) -> bool:
    """Whether what has this mode is written into and never replaced. A disk is not: no result is
    meant to destroy one."""
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _own_descriptor(path: Path) -> int | None:
    """The open file of this process that links lead to, as /dev/stdout leads to 1."""
    own = Path(f"/proc/{os.getpid()}/fd")
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if not path.is_symlink():
            return None
        if folder == own:
            return int(path.name)
        path = folder / path.readlink()
    return None
