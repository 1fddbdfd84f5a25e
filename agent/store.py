"""The agent's directory on disk: its state, its audit log, and the lock of the running agent."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from placewire.agent.contract.command import AGENT
from placewire.agent.iproute2_names import Names
from placewire.agent.own_files import open_own, read_own
from placewire.agent.reconcile.lease import Kept

log = logging.getLogger(__name__)


# A log of AUDIT_BYTES is put aside; the newest AUDIT_FILES of those put aside are kept.
AUDIT_BYTES = 4 * 1024 * 1024
AUDIT_FILES = 8
STATE_FILE = "state.json"
COPY_FILE = "state.copy.json"
LOCK_FILE = "agent.lock"


class StoreError(ValueError):
    """The state on disk cannot be used. The message: which file, and what to do."""


class DamagedError(StoreError):
    """Neither the state nor its copy is as it was written."""


def read_kept(directory: Path) -> Kept:
    """Reads what an agent has on disk there; touches nothing. Kept() where there is nothing. The
    copy is read where the state is lost or damaged. Raises OSError, StoreError."""
    damaged: list[str] = []
    for name in (STATE_FILE, COPY_FILE):
        path = directory / name
        try:
            kept = _parsed(read_own(path), path)
        except FileNotFoundError:
            continue
        except DamagedError as error:
            damaged.append(str(error))
            continue
        except PermissionError:
            raise
        except OSError as error:
            damaged.append(f"{path} cannot be read: {error.strerror}")
            continue
        if name == COPY_FILE:
            said = "; ".join(damaged) or f"{directory / STATE_FILE} is lost"
            log.error("%s; its copy %s is whole, and is used", said, path)
        return kept
    if damaged:
        raise DamagedError(
            f"{'; '.join(damaged)}: what was in force here cannot be known. Stop the agent and run "
            f"`{AGENT} restore --from-marks`: it puts these files aside, and gives each NIC back "
            "what its bridge's mark says that it held"
        )
    return Kept()


def put_damaged_aside(directory: Path) -> tuple[str, ...]:
    """Renames the state and its copy, so that an agent starts without them; returns their new
    names. Raises OSError."""
    aside = []
    for name in (STATE_FILE, COPY_FILE):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(f"{name}.damaged"))
            aside.append(f"{path}.damaged")
    return tuple(aside)


def _parsed(data: bytes, path: Path) -> Kept:
    """Two lines: a header with the digest of the second, and the state. One line without a header
    is what agents of version 1 wrote. Raises DamagedError, StoreError."""
    first, _, rest = data.partition(b"\n")
    header = _json(first)
    if isinstance(header, dict) and "sha256" in header:
        text = rest.removesuffix(b"\n")
        if hashlib.sha256(text).hexdigest() != header["sha256"]:
            raise DamagedError(f"{path} is not as it was written")
    elif isinstance(header, dict) and header.get("version") == 1 and not rest.strip():
        text = first
    else:
        raise DamagedError(f"{path} is not as it was written")
    try:
        kept = Kept.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(
            f"{path}: not a state that this version of the agent knows ({error.error_count()} "
            "mistakes); run the version of the agent that wrote it"
        ) from error
    # An agent of an earlier release wrote names.
    return kept.model_copy(update={"ledger": Names().in_ledger(kept.ledger)})


def _json(line: bytes) -> Any:
    """None where it is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class DiskStore:
    """Implements placewire.agent.reconcile.effects.Store in one directory.

    state.json     what the agent must know after a restart: a line with a digest, and the state;
                   replaced as a whole
    state.copy.json  the same, written before it, for where the first is lost or damaged
    audit.jsonl    one record per line, only ever appended to. A file of AUDIT_BYTES becomes
                   audit.jsonl.1, that one audit.jsonl.2, and so on; those after AUDIT_FILES are
                   deleted. Whoever must keep more collects the files elsewhere.
    """

    def __init__(self, directory: Path, audit_bytes: int = AUDIT_BYTES) -> None:
        self._audit_bytes = audit_bytes
        self._directory = directory
        self._audit = directory / "audit.jsonl"
        directory.mkdir(parents=True, exist_ok=True, mode=0o750)

    def load(self) -> Kept:
        """Raises OSError, StoreError."""
        return read_kept(self._directory)

    def save(self, kept: Kept) -> None:
        text = kept.model_dump_json()
        digest = hashlib.sha256(text.encode()).hexdigest()
        lines = json.dumps({"sha256": digest}) + "\n" + text + "\n"
        # Both in full first: a full disk must not take one of them and not the other.
        for name in (COPY_FILE, STATE_FILE):
            self._write_beside(name, lines)
        # The copy first: what is not kept must not be in the file that is read first.
        for name in (COPY_FILE, STATE_FILE):
            self._beside(name).replace(self._directory / name)
            self._sync_names()

    def _write_beside(self, name: str, text: str) -> None:
        with open_own(self._beside(name), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _beside(self, name: str) -> Path:
        return (self._directory / name).with_suffix(".part")

    def _sync_names(self) -> None:
        """So that a rename survives a power cut."""
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
        with open_own(self._audit, "ab", buffering=0) as file:
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


class AlreadyRunningError(RuntimeError):
    """Another agent holds this state directory; the message has its process id."""


def take_lock(directory: Path) -> IO[str]:
    """Takes the lock that an agent holds while it runs. Closing the file gives it up, and so does
    any end of the process. Raises AlreadyRunningError, OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o750)
    try:
        file = open_own(directory / LOCK_FILE, "a+")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # A disk that fails is set read-only: what is in force must be undone all the same.
        file = open_own(directory / LOCK_FILE, "r")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise AlreadyRunningError(
            f"{directory}: an agent is running with this state (process {holder})"
        ) from error
    # On a full or read-only disk the lock holds all the same, without its holder's process id.
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file
