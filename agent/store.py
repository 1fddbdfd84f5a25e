"""What an agent keeps on disk: its state, written before anything is touched, and its audit log."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from agent.reconcile.lease import Kept


class StoreError(ValueError):
    """The state on disk cannot be used: says which file and what to do."""


class DiskStore:
    """Implements agent.reconcile.effects.Store in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._state = directory / "state.json"
        self._audit = directory / "audit.jsonl"
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)

    def load(self) -> Kept:
        try:
            text = self._state.read_text()
        except FileNotFoundError:
            return Kept()
        try:
            return Kept.model_validate_json(text)
        except ValidationError as error:
            raise StoreError(
                f"{self._state}: not a state of this version ({error.error_count()} mistakes); "
                "restore it with the agent version that wrote it"
            ) from error

    def save(self, kept: Kept) -> None:
        staged = self._state.with_suffix(".part")
        with staged.open("w") as file:
            file.write(kept.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self._state)
        # The rename itself must survive a power cut, too.
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def audit(self, record: dict[str, Any]) -> None:
        with self._audit.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


class AlreadyRunningError(RuntimeError):
    """Another agent holds this state directory; says its process id."""


def take_lock(directory: Path) -> IO[str]:
    """The lock that one agent holds while it runs: given up when the file is closed, or when the
    process ends however it ends. Raises AlreadyRunningError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    file = (directory / "agent.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise AlreadyRunningError(
            f"{directory}: an agent is running with this state (process {holder})"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
