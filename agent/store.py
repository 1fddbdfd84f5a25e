"""The agent's directory on disk: its state, its audit log, and the lock of the running agent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from placewire.agent.reconcile.lease import Kept

log = logging.getLogger(__name__)


# A log of AUDIT_BYTES is put aside; the newest AUDIT_FILES of those put aside are kept.
AUDIT_BYTES = 4 * 1024 * 1024
AUDIT_FILES = 8
STATE_FILE = "state.json"


class StoreError(ValueError):
    """The state on disk cannot be used. The message: which file, and what to do."""


def read_kept(directory: Path) -> Kept:
    """Reads what an agent has on disk there; touches nothing. Raises OSError, StoreError."""
    path = directory / STATE_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Kept()
    try:
        return Kept.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(
            f"{path}: not a state of this version ({error.error_count()} mistakes); "
            "restore with the version of the agent that wrote it"
        ) from error


class DiskStore:
    """Implements placewire.agent.reconcile.effects.Store in one directory.

    state.json     what the agent must know after a restart; replaced as a whole
    audit.jsonl    one record per line, only ever appended to. A file of AUDIT_BYTES becomes
                   audit.jsonl.1, that one audit.jsonl.2, and so on; those after AUDIT_FILES are
                   deleted. Whoever must keep more collects the files elsewhere.
    """

    def __init__(self, directory: Path, audit_bytes: int = AUDIT_BYTES) -> None:
        self._audit_bytes = audit_bytes
        self._directory = directory
        self._state = directory / STATE_FILE
        self._audit = directory / "audit.jsonl"
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)

    def load(self) -> Kept:
        """Raises OSError, StoreError."""
        return read_kept(self._directory)

    def save(self, kept: Kept) -> None:
        staged = self._state.with_suffix(".part")
        with staged.open("w") as file:
            _give_to_owner(file.fileno(), self._directory)
            file.write(kept.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self._state)
        # The directory is synced too, so that the rename itself survives a power cut.
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def audit(self, records: Sequence[dict[str, Any]]) -> None:
        """Writes all records at once, so that a change of hundreds of entries waits for the disk
        once. Raises OSError, and then leaves no record, nor part of one."""
        if self._audit.exists() and self._audit.stat().st_size >= self._audit_bytes:
            self._put_audit_aside()
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        with self._audit.open("ab", buffering=0) as file:
            _give_to_owner(file.fileno(), self._directory)
            before = file.tell()
            if file.write(lines) != len(lines):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._audit))
            os.fsync(file.fileno())

    def _put_audit_aside(self) -> None:
        former = [self._audit.with_name(f"audit.jsonl.{n}") for n in range(1, AUDIT_FILES + 1)]
        for newer, older in reversed(list(pairwise([self._audit, *former]))):
            if newer.exists():
                newer.replace(older)


def _give_to_owner(descriptor: int, directory: Path) -> None:
    """Lets the agent, which is not root, read what root writes with `agent restore`."""
    owner, file = directory.stat(), os.fstat(descriptor)
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (file.st_uid, file.st_gid):
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


class AlreadyRunningError(RuntimeError):
    """Another agent holds this state directory; the message has its process id."""


def take_lock(directory: Path) -> IO[str]:
    """Takes the lock that an agent holds while it runs. Closing the file gives it up, and so does
    any end of the process. Raises AlreadyRunningError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    file = (directory / "agent.lock").open("a+")
    _give_to_owner(file.fileno(), directory)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise AlreadyRunningError(
            f"{directory}: an agent is running with this state (process {holder})"
        ) from error
    # On a full disk the lock holds all the same; only its holder's process id is missing.
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file
