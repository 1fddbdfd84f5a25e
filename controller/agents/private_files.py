"""Reads and writes files that only their owner may replace, and mostly only their owner read."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from placewire.controller.errors import UsageError


def make_own(folder: Path) -> None:
    """Makes the folder where there is none. Raises OSError, also where it is another user's, who
    could replace what is written there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise PermissionError(1, "the folder is another user's", str(folder))


def read_private(file: Path) -> bytes:
    """Raises UsageError where somebody else owns the file than this user, root or the folder's
    owner, who is the operator where root runs a command by sudo; or where its mode lets others
    read or replace it: they may have it by now. Raises OSError."""
    with file.open("rb") as stream:
        found, operator = os.fstat(stream.fileno()), file.parent.stat().st_uid
        if found.st_uid not in (os.geteuid(), 0, operator):
            raise UsageError(
                f"the private key is another user's ({found.st_uid})",
                where=str(file),
                remedy="run as that user; or, if it is yours, "
                f"`chown {operator} {shlex.quote(str(file))}`",
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise UsageError(
                f"the private key has mode {mode:04o}, so that others can read or replace it",
                where=str(file),
                remedy=f"`chmod 600 {shlex.quote(str(file))}`; where the file system keeps no such "
                "mode (CIFS, Windows' drives under WSL, a volume of Kubernetes), copy the "
                "controller's folder to one that does, and give it as --state-dir; where others "
                f"may have read the key, move {file.parent} away, so that a new authority is made, "
                "and enrol all servers again",
            )
        return stream.read()


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
