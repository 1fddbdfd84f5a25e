"""Records which certificates were issued, which are denied, and which two servers share."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from placewire.controller.agents.private_files import write_private

# A certificate says in whole seconds when it was issued.
_SECOND = 1.0
# The lock is held for a moment. A process that is stopped while it has it would be waited for
# without end.
_WAIT_SECONDS = 10.0
_AGAIN_SECONDS = 0.01


@dataclass(frozen=True)
class Bearer:
    """The certificate that an agent shows: its name, its serial number (decimal), when it was
    issued, and when it expires."""

    name: str
    serial: str
    issued_unix: float
    expires_unix: float = math.inf


@dataclass(frozen=True)
class _Issued:
    """A line of issued.jsonl."""

    name: str
    serial: str
    issued: float
    expires: float


@dataclass(frozen=True)
class _Denied:
    """What denied.json has. file: which version of the file that is; None: there is none."""

    file: tuple[int, int, int] | None = None
    serials: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


class Revocations:
    """Keeps three files beside the authority. Whoever reads one of them in order to write another
    holds the lock (`locked`).

    issued.jsonl: a line per certificate. denied.json: `serials`, and `since`, by name the time
    before which every certificate is denied, recorded or not. copied.json: by serial number, the
    addresses of two servers that both have this certificate.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._issued, self._denied = directory / "issued.jsonl", directory / "denied.json"
        self._copied = directory / "copied.json"
        self._known = _Denied()

    @contextmanager
    def locked(self, *, waits: bool = True) -> Iterator[None]:
        """Held by one process at a time, so that no renewal slips through during a denial.

        waits: whether for another process that has it; not where leases would run out meanwhile.
        Raises OSError where that process keeps it."""
        file, until = self._directory / "lock", time.monotonic() + (_WAIT_SECONDS if waits else 0)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while not _is_locked(descriptor):
                if time.monotonic() >= until:
                    why = "another process holds this lock, and may be stopped"
                    raise OSError(errno.EAGAIN, why, str(file))
                time.sleep(_AGAIN_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def record(self, name: str, serial: int, expires_unix: float) -> None:
        """Must be called with the lock held, before anybody is given the certificate."""
        row = _Issued(name, str(serial), time.time(), expires_unix)
        descriptor = os.open(self._issued, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            # A full disk or a power cut may have torn the last line: then start a new one.
            torn = b"" if end == 0 or file.read(1) == b"\n" else b"\n"
            file.seek(0, os.SEEK_END)
            file.write(torn + json.dumps(asdict(row)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def deny(self, name: str) -> int:
        """Denies all certificates that this name was issued until now, including any that were
        never recorded; later ones are valid. Returns how many are recorded and not yet expired."""
        with self.locked():
            now, denied = time.time(), self._read_denied()
            mine = {one.serial for one in self._rows() if one.name == name and one.expires > now}
            serials = sorted({*denied.serials, *mine})
            _write(self._denied, {"serials": serials, "since": {**denied.since, name: now}})
        return len(mine)

    def note_copied(self, serials: Collection[str], first: str, second: str) -> None:
        """Records that the servers at these two addresses both use these certificates of one name.
        The record holds until both have new certificates, because the server that was turned away
        may dial again later."""
        if all(self.copied(serial) is not None for serial in serials):
            return
        with self.locked(waits=False):
            both = {serial: [first, second] for serial in serials}
            _write(self._copied, _read(self._copied, {}) | both)

    def copied(self, serial: str) -> tuple[str, str] | None:
        """The addresses of two servers that both have this certificate; None where none do."""
        found = _read(self._copied, {}).get(serial)
        return None if found is None else (found[0], found[1])

    def is_denied(self, bearer: Bearer) -> bool:
        before = bearer.issued_unix + _SECOND < self.denied_before(bearer.name)
        return before or bearer.serial in self._read_denied().serials

    def denied_before(self, name: str) -> float:
        """The time (Unix seconds) before which every certificate of this name is denied. It lies
        ahead where this machine's clock was ahead when the name was denied."""
        return self._read_denied().since.get(name, 0.0)

    def _read_denied(self) -> _Denied:
        """Asked at every message of every agent: the file, which can be long, is read again only
        where another process has replaced it."""
        try:
            found = self._denied.stat()
        except FileNotFoundError:
            return _Denied()
        file = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._known.file != file:
            document = _read(self._denied, {"serials": [], "since": {}})
            # Where it was replaced just now, the next look reads it again.
            self._known = _Denied(file, frozenset(document["serials"]), document["since"])
        return self._known

    def _rows(self) -> Iterator[_Issued]:
        try:
            lines = self._issued.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield _Issued(**json.loads(line))
            except (ValueError, TypeError):
                continue  # The line is torn, so nobody was given its certificate.


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: Path, absent: object) -> Any:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return absent


def _write(file: Path, document: object) -> None:
    write_private(file, json.dumps(document).encode())
