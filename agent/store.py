"""What an agent knows of its lease: on disk, in memory, and in step with the clock.

Its state is on disk before anything is touched, and so is its audit log.

A lease's expiry is written in wall-clock time, since only that outlives a restart. While the agent
runs, time is counted by a clock that nobody sets: where the wall clock is set, expiries move along.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.effects import EffectError, Store
from placewire.agent.reconcile.lease import Kept
from placewire.agent.reconcile.steps import Step

log = logging.getLogger(__name__)


class StoreError(ValueError):
    """The state on disk cannot be used: says which file and what to do."""


# The audit log is put aside at this size; of those put aside the newest are kept.
AUDIT_BYTES = 4 * 1024 * 1024
AUDIT_FILES = 8
AUDIT_VERSION = 1
# A wall clock that is off by less is slewed, not set.
CLOCK_TOLERANCE_SECONDS = 0.5


STATE_FILE = "state.json"


def read_kept(directory: Path) -> Kept:
    """What an agent has on disk there. Touches nothing. Raises OSError, StoreError."""
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
            "restore it with the agent version that wrote it"
        ) from error


class DiskStore:
    """Implements placewire.agent.reconcile.effects.Store in one directory.

    state.json     what the agent must know after a restart; replaced as a whole
    audit.jsonl    one record per line, only ever appended to. A file of AUDIT_BYTES becomes
                   audit.jsonl.1 (the newest of the former ones), and so on up to
                   audit.jsonl.AUDIT_FILES; what is older is deleted. Whoever must keep more
                   collects those files elsewhere.
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
        # The rename itself must survive a power cut, too.
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def audit(self, records: Sequence[dict[str, Any]]) -> None:
        """One write: a change of hundreds of entries waits for the disk once. Raises OSError, and
        then leaves none of the records, and no half one."""
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
    """What root writes with `agent restore` stays readable for the agent, which is not root."""
    owner, file = directory.stat(), os.fstat(descriptor)
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (file.st_uid, file.st_gid):
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def elapsed_seconds() -> float:
    """Since the boot, sleep included; never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Memory:
    """lock: held by whoever calls a method that changes `kept`."""

    def __init__(
        self, store: Store, clock: Callable[[], float], elapsed: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._elapsed = elapsed
        self.lock = threading.Lock()
        self.kept = store.load()
        # Whether the disk lags behind `kept`, and when it was last tried.
        self.unsaved = False
        self._tried_at = elapsed()
        # What expiries are written in: wall-clock time less elapsed time.
        self._wall_offset = clock() - elapsed()

    def now(self) -> float:
        """Wall-clock time, with expiries in step with it."""
        now = self._clock()
        set_by = now - self._elapsed() - self._wall_offset
        if abs(set_by) > CLOCK_TOLERANCE_SECONDS:
            log.warning("the clock was set by %.1f s: expiries move along", set_by)
            self._wall_offset += set_by
            self.hold(leases.with_clock_set(self.kept, set_by))
        return now

    def save(self, kept: Kept) -> None:
        """Raises EffectError, with nothing changed here, where the disk does not take it."""
        if kept is not self.kept:
            try:
                self._store.save(kept)
            except OSError as error:
                raise EffectError(f"the agent's state cannot be saved: {error}") from error
            self.kept, self.unsaved = kept, False

    def hold(self, kept: Kept) -> None:
        """A full disk must not keep anything from being undone: what it does not take is held
        here, and saved later."""
        try:
            self.save(kept)
        except EffectError as error:
            log.error("%s; going on without (an agent that starts anew would not know)", error)
            self.kept, self.unsaved, self._tried_at = kept, True, self._elapsed()

    def save_again(self) -> None:
        """What the disk did not take; not at every call."""
        if self.unsaved and self._elapsed() - self._tried_at >= leases.RETRY_SECONDS:
            self._tried_at = self._elapsed()
            try:
                self._store.save(self.kept)
            except OSError:
                return
            self.unsaved = False
            log.info("the agent's state is saved again")

    def note(self, event: str, steps: Sequence[Step], detail: str = "") -> None:
        try:
            self.audit(event, steps, detail)
        except EffectError as error:
            log.error("%s; going on without: %s of %d changes", error, event, len(steps))

    def audit(self, event: str, steps: Sequence[Step], detail: str = "") -> None:
        """Raises EffectError."""
        lease = self.kept.lease
        common = {
            "version": AUDIT_VERSION,
            "unix": self._clock(),
            "event": event,
            "generation": lease.generation,
            "plan": lease.plan_name,
            "detail": detail or lease.detail,
        }
        records = [{**common, "change": step.as_change().model_dump()} for step in steps]
        try:
            self._store.audit(records or [common])
        except OSError as error:
            raise EffectError(f"the audit log cannot be written: {error}") from error


class AlreadyRunningError(RuntimeError):
    """Another agent holds this state directory; says its process id."""


def take_lock(directory: Path) -> IO[str]:
    """The lock that one agent holds while it runs: given up when the file is closed, or when the
    process ends however it ends. Raises AlreadyRunningError."""
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
    # On a full disk the lock holds all the same: only its holder's number is missing.
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file
