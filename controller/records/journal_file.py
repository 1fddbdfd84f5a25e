"""The journal's SQLite file: opening, reading and writing it, and what is left where that fails."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from placewire.controller.errors import JournalFailed
from placewire.controller.records.change_lock import LOCK_NAME

FILE_NAME = "journal.sqlite3"
# For so long another process may hold the file; a controller that waits hears no agent.
_WAIT_SECONDS = 2.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    plan_name TEXT NOT NULL,
    plan_digest TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS phases (
    decision INTEGER NOT NULL REFERENCES decisions (id),
    phase TEXT NOT NULL,
    unix_seconds REAL NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS generations (
    decision INTEGER NOT NULL REFERENCES decisions (id),
    server TEXT NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (server, generation)
) STRICT;
CREATE TABLE IF NOT EXISTS states (
    decision INTEGER NOT NULL REFERENCES decisions (id),
    server TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (decision, server)
) STRICT;
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    plan_name TEXT NOT NULL,
    unix_seconds REAL NOT NULL,
    report TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS removals (
    plan_name TEXT NOT NULL,
    server TEXT NOT NULL,
    latest_decision INTEGER NOT NULL
) STRICT;
"""

# What others put in these places would be used as the controller's own.
_AUTHORITY = "ca"
_ENDS = ("", "-wal", "-shm", "-journal")
_NO_LINKS = (_AUTHORITY, LOCK_NAME, *(FILE_NAME + end for end in _ENDS))
_PLACES = (*_NO_LINKS, "cache", "logs", "refused.jsonl", "refused.jsonl.1")
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_TABLES = ("decisions", "phases", "generations", "states", "runs", "removals")


class JournalFile:
    """lost: why nothing can be written; None: it can. Methods raise JournalFailed."""

    def __init__(self, path: Path, database: sqlite3.Connection, lost: str | None) -> None:
        self._path, self.database, self.lost = path, database, lost

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self.lost is not None:
            raise self._failed(self.lost)
        try:
            self.database.execute("BEGIN IMMEDIATE")
            yield
            self.database.execute("COMMIT")
        except BaseException as error:
            if self.database.in_transaction:
                with suppress(sqlite3.Error):
                    self.database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._failed(str(error)) from error
            raise

    def read(self, query: str, *values: object) -> list[Any]:
        try:
            return self.database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> JournalFailed:
        return JournalFailed(
            why,
            where=str(self._path),
            remedy="free space on its disk, end the program that holds the file, or restore it "
            "from a backup",
        )


def require_own(directory: Path) -> None:
    """Makes the folder, or takes it from others to write to: they could exchange journal and lock.
    Raises OSError, also where another user has put something into it that a controller uses, and
    where a pipe is in the place of such a file."""
    directory.mkdir(parents=True, exist_ok=True)
    found = directory.stat()
    there = {path.name for path in directory.iterdir()}
    ours = not there or bool(there & {FILE_NAME, LOCK_NAME, _AUTHORITY})
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # A folder for everybody, as /tmp is, stays so.
        if found.st_uid != os.geteuid() or not ours or found.st_mode & stat.S_ISVTX:
            why = "others can write to this folder; give one of its own"
            raise PermissionError(1, why, str(directory))
        directory.chmod(stat.S_IMODE(found.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    # Whoever owns the folder can exchange what is in it, and so can root.
    mine = {os.geteuid(), found.st_uid, 0}
    for name in there.intersection(_PLACES):
        _require_ours(directory / name, mine, may_link=name not in _NO_LINKS)
    if _AUTHORITY in there:
        for file in (directory / _AUTHORITY).iterdir():
            _require_ours(file, mine, may_link=False)


def _require_ours(path: Path, mine: set[int], *, may_link: bool) -> None:
    found, why = path.lstat(), ""
    if found.st_uid not in mine:
        why = f"it belongs to another user (uid {found.st_uid}), who may have made it to be used"
    elif stat.S_ISLNK(found.st_mode) and not may_link:
        why = "it is a link"
    elif stat.S_IFMT(found.st_mode) not in _KINDS:
        why = "it is neither a file nor a folder, and may be waited for without end"
    if why:
        raise PermissionError(errno.EPERM, why, str(path))


def _keep_from_others(file: Path) -> None:
    """Whoever can read the journal, or one of the files that SQLite puts beside it with its mode,
    could hold its locks. In a folder of somebody else, who may run commands too, they stay as they
    are. Raises OSError."""
    if file.parent.stat().st_uid != os.geteuid():
        return
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    # By its path, which nobody else can exchange: to close a file would free SQLite's locks on it.
    for path in (file.with_name(file.name + end) for end in _ENDS):
        with suppress(FileNotFoundError):
            found = path.lstat()
            if found.st_uid == os.geteuid() and found.st_mode & _FOR_OTHERS:
                path.chmod(0o600)


def opened(file: Path) -> sqlite3.Connection:
    """Raises OSError, sqlite3.Error."""
    _keep_from_others(file)
    database = sqlite3.connect(file, isolation_level=None, timeout=_WAIT_SECONDS)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA foreign_keys = ON")
        database.executescript(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database


def is_made(file: Path) -> bool:
    """Whether there is such a file, which perhaps cannot be used."""
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    except OSError:  # To open it says why.
        return True
    return True


def in_memory() -> sqlite3.Connection:
    """A journal that has nothing."""
    made = sqlite3.connect(":memory:", isolation_level=None)
    made.executescript(_SCHEMA)
    return made


def copied(file: Path) -> sqlite3.Connection:
    """A journal in memory, with all that the file has; where not all of it can be read, with
    nothing: a decision without its last phases would be ended in another way."""
    copy = in_memory()
    uri = f"{file.absolute().as_uri()}?mode=rw"
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as database,
    ):
        # Otherwise SQLite needs a second file, for which a full disk has no room.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        copy.execute("BEGIN")
        # A former release had fewer tables.
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        for table in there.intersection(_TABLES):
            if rows := database.execute(f"SELECT * FROM {table}").fetchall():
                marks = ", ".join("?" * len(rows[0]))
                copy.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        copy.execute("COMMIT")
    if copy.in_transaction:
        copy.execute("ROLLBACK")
    return copy
