"""Which certificates were issued, which of them no longer open the link, and which two servers
hold."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

# A certificate says in whole seconds when it was issued.
_SECOND = 1.0


@dataclass(frozen=True)
class Bearer:
    """Who shows a certificate: its name, its serial number (decimal), when it was issued, and when
    it expires."""

    name: str
    serial: str
    issued_unix: float
    expires_unix: float = math.inf


@dataclass(frozen=True)
class _Row:
    name: str
    serial: str
    issued: float
    expires: float


@dataclass(frozen=True)
class _Denied:
    """serials: of all that were known; since: by name, for those issued before any were noted."""

    serials: frozenset[str]
    since: dict[str, float]


class Revocations:
    """Three files beside the authority: `issued.jsonl`, a line per certificate, `denied.json`, and
    `copied.json`. What reads one to write another holds `locked`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._issued, self._denied = directory / "issued.jsonl", directory / "denied.json"
        self._copied = directory / "copied.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Not twice at once: a renewal is before a denial, or after it."""
        descriptor = os.open(self._directory / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def record(self, name: str, serial: int, expires_unix: float) -> None:
        """To be called with the lock held, before the certificate is given to anybody."""
        row = _Row(name, str(serial), time.time(), expires_unix)
        descriptor = os.open(self._issued, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            # A line that a full disk or a power cut tore: what follows has one of its own.
            torn = b"" if end == 0 or file.read(1) == b"\n" else b"\n"
            file.seek(0, os.SEEK_END)
            file.write(torn + json.dumps(asdict(row)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def deny(self, name: str) -> int:
        """All that were issued to this name until now, those included that were issued before any
        were noted here; returns how many are noted and have not expired. What is issued to it
        afterwards is valid."""
        with self.locked():
            now, denied = time.time(), self._read()
            mine = {one.serial for one in self._rows() if one.name == name and one.expires > now}
            serials = sorted(denied.serials | mine)
            _write(self._denied, {"serials": serials, "since": {**denied.since, name: now}})
        return len(mine)

    def note_copied(self, serials: Collection[str], first: str, second: str) -> None:
        """Two servers, at these addresses, hold one of these certificates each, and say that they
        are one. It is known until they have others: who was turned away may come back later."""
        if all(self.copied(serial) is not None for serial in serials):
            return
        with self.locked():
            both = {serial: [first, second] for serial in serials}
            _write(self._copied, self._read_copied() | both)

    def copied(self, serial: str) -> tuple[str, str] | None:
        """The two addresses."""
        found = self._read_copied().get(serial)
        return None if found is None else (found[0], found[1])

    def is_denied(self, bearer: Bearer) -> bool:
        denied = self._read()
        since = denied.since.get(bearer.name, 0.0)
        return bearer.serial in denied.serials or bearer.issued_unix + _SECOND < since

    def _read(self) -> _Denied:
        try:
            document = json.loads(self._denied.read_text())
        except FileNotFoundError:
            return _Denied(frozenset(), {})
        return _Denied(frozenset(document["serials"]), document["since"])

    def _read_copied(self) -> dict[str, list[str]]:
        try:
            found: dict[str, list[str]] = json.loads(self._copied.read_text())
        except FileNotFoundError:
            return {}
        return found

    def _rows(self) -> Iterator[_Row]:
        try:
            lines = self._issued.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield _Row(**json.loads(line))
            except (ValueError, TypeError):
                continue  # torn: it was given to nobody


def _write(file: Path, document: object) -> None:
    """Whole or not at all."""
    fresh = file.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(document, out)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)
