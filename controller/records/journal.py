"""The controller's journal on disk: decisions, their phases and generations, and runs.

A decision is on disk before it is acted on. Rows of the SQLite file are only ever added: each phase
is a row, so that the history of a decision can be read. A lock file lets one change run at a time,
and says which process runs it.

Undoing needs no journal: where another process holds it, the disk is full or the file is damaged,
what became of servers is told (`Journal.note`) instead of written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.controller.errors import JournalFailed, UsageError

_FILE = "journal.sqlite3"
# The detail of a destroyed decision that says on which servers; a former release's does not.
_NAMES_SERVERS = re.compile(r"(^|, )removed on ")
# For so long another process may hold the journal; a controller that waits hears no agent.
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

_TABLES = ("decisions", "phases", "generations", "states", "runs", "removals")


@dataclass(frozen=True)
class Phase:
    name: str
    unix_seconds: float
    detail: str


def removed_on(servers: Collection[str]) -> str:
    """The detail of the phase `destroyed`: a decision may be destroyed on some servers only."""
    return f"removed on {' '.join(servers)}"


@dataclass(frozen=True)
class Decision:
    """phases: in the order in which they were recorded."""

    id: int
    plan_name: str
    plan_digest: str
    generations: Mapping[str, int]
    phases: tuple[Phase, ...]

    @property
    def last_phase(self) -> str:
        return self.phases[-1].name

    @property
    def was_kept(self) -> bool:
        """Whether every server confirmed that it keeps this decision without a lease."""
        return any(phase.name == "kept" for phase in self.phases)

    @property
    def was_decided_to_keep(self) -> bool:
        """Whether some servers may keep this decision without a lease."""
        return any(phase.name == "keep decided" for phase in self.phases)


@dataclass(frozen=True)
class Run:
    """unix_seconds: when the run ended. report: its RunReport as JSON."""

    plan_name: str
    unix_seconds: float
    report: str


def _tell(line: str) -> None:
    print(f"controller: {line}", file=sys.stderr)


class Journal:
    """To be used from one thread. What a method changes is on disk when the method returns. Methods
    raise JournalFailed where the journal cannot be read or written.

    lost: why nothing can be written, for an undo that goes on without the journal; None: it can.
    """

    def __init__(
        self,
        directory: Path,
        database: sqlite3.Connection,
        say: Callable[[str], None] = _tell,
        *,
        needed: bool = True,
        lost: str | None = None,
    ) -> None:
        self._lock_file, self._file = directory / "apply.lock", directory / _FILE
        self._database, self._say, self._needed, self.lost = database, say, needed, lost

    @classmethod
    @contextmanager
    def open(
        cls, directory: Path, say: Callable[[str], None] = _tell, *, needed: bool = True
    ) -> Iterator[Journal]:
        """Makes the journal if there is none. say: told what could not be written, where the caller
        goes on all the same.

        needed: raises UsageError where the journal cannot be used. Otherwise says so, and gives a
        journal that has what can still be read, perhaps nothing, and into which nothing is written.
        """
        lost = None
        try:
            _require_own(directory)
            database = _opened(directory / _FILE)
        except (OSError, sqlite3.Error) as error:
            if needed:
                raise UsageError(
                    f"the journal cannot be used: {error}",
                    where=str(directory),
                    remedy="run as the user that owns it, free space on its disk, end the program "
                    "that holds the file, or give another --state-dir",
                ) from error
            lost, database = str(error), _copied(directory / _FILE)
            say(f"{directory / _FILE} cannot be written: {lost}; this command goes on without it")
        with closing(database):
            yield cls(directory, database, say, needed=needed, lost=lost)

    def next_generation(self, server: str, reported: int) -> int:
        """Returns a generation above all that this journal has for the server, and above the one
        that its agent reports, which another controller or a lost journal may have given it."""
        ((highest,),) = self._read(
            "SELECT max(generation) FROM generations WHERE server = ?", server
        )
        return max(highest or 0, reported) + 1

    def begin(self, plan_name: str, plan_digest: str, generations: Mapping[str, int]) -> int:
        """Records a staged decision; returns its id. Raises ValueError unless generations go up."""
        with self._transaction():
            for server, generation in generations.items():
                if generation < (least := self.next_generation(server, 0)):
                    raise ValueError(
                        f"{server}: generation {generation} was used already; generations only go "
                        f"up, the next is {least}"
                    )
            cursor = self._database.execute(
                "INSERT INTO decisions (plan_name, plan_digest) VALUES (?, ?)",
                (plan_name, plan_digest),
            )
            decision = cursor.lastrowid
            assert decision is not None
            self._database.executemany(
                "INSERT INTO generations (decision, server, generation) VALUES (?, ?, ?)",
                [(decision, server, generation) for server, generation in generations.items()],
            )
            self._record(decision, "staged", "")
        return decision

    def decide(self, decision: int, phase: str, *, detail: str = "") -> None:
        """phase: committed, kept, restored, restore failed, destroy decided, destroyed, finished
        (by a later decision)."""
        with self._transaction():
            self._record(decision, phase, detail)

    def note(self, decision: int, phase: str, *, detail: str = "") -> None:
        """Records as `decide` does what became of the servers. Where that cannot be written, says
        so and raises nothing: nobody's network may wait for a file."""
        try:
            self.decide(decision, phase, detail=detail)
        except JournalFailed as error:
            self._say(
                f"decision {decision}: the journal does not have that it is {phase!r}: "
                f"{error.what}; `controller history`, `status` and `recover` go by what it has"
            )

    def note_removals(self, plan_name: str, servers: Collection[str]) -> None:
        """Records that nothing of the plan is left on these servers. Says where it cannot."""
        try:
            with self._transaction():
                self._database.executemany(
                    "INSERT INTO removals (plan_name, server, latest_decision) "
                    "SELECT ?, ?, coalesce(max(id), 0) FROM decisions",
                    [(plan_name, server) for server in servers],
                )
        except JournalFailed as error:
            named = ", ".join(servers)
            self._say(f"{named}: the journal does not have that they were destroyed: {error.what}")

    def holding(self, plan_name: str) -> frozenset[str]:
        """Servers that, by this journal, keep a network of the plan: told to keep a decision, and
        destroyed neither with it nor since."""
        removed = dict(
            self._read(
                "SELECT server, max(latest_decision) FROM removals WHERE plan_name = ? "
                "GROUP BY server",
                plan_name,
            )
        )
        kept: dict[str, int] = {}
        for one in self.decisions():
            if one.plan_name != plan_name:
                continue
            # A former release did not record which servers it destroyed: all of the decision.
            if one.last_phase == "destroyed" and not _NAMES_SERVERS.search(one.phases[-1].detail):
                kept = {s: decision for s, decision in kept.items() if s not in one.generations}
            elif one.was_decided_to_keep and one.last_phase != "restored":
                kept |= dict.fromkeys(one.generations, one.id)
        return frozenset(s for s, decision in kept.items() if decision > removed.get(s, 0))

    def keep(self, decision: int, states: Mapping[str, str]) -> None:
        """Records that servers are about to keep the decision without a lease. states: each
        server's desired state as JSON, for a later rollback to this decision."""
        with self._transaction():
            self._database.executemany(
                "INSERT INTO states (decision, server, state) VALUES (?, ?, ?)",
                [(decision, server, state) for server, state in states.items()],
            )
            self._record(decision, "keep decided", "")

    def states(self, decision: int) -> Mapping[str, str]:
        """Desired states as JSON, by server, of a decision that was kept; else empty."""
        return dict(self._read("SELECT server, state FROM states WHERE decision = ?", decision))

    def decisions(self) -> tuple[Decision, ...]:
        """All decisions, oldest first."""
        rows = self._read("SELECT id, plan_name, plan_digest FROM decisions ORDER BY id")
        return tuple(self._decision(*row) for row in rows)

    def record_run(self, plan_name: str, report: str) -> None:
        """report: the run's report as JSON."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO runs (plan_name, unix_seconds, report) VALUES (?, ?, ?)",
                (plan_name, time.time(), report),
            )

    def runs(self, plan_name: str | None = None) -> tuple[Run, ...]:
        """Runs of this plan, or of all plans; oldest first."""
        rows = self._read(
            "SELECT plan_name, unix_seconds, report FROM runs WHERE ?1 IS NULL OR plan_name = ?1 "
            "ORDER BY id",
            plan_name,
        )
        return tuple(Run(*row) for row in rows)

    def holder(self) -> str | None:
        """Names the process that has a change under way; None where there is none, or where the
        lock cannot be looked at."""
        try:
            descriptor = self._locked()
        except OSError:
            return None
        if descriptor is None:
            return self._named_holder()
        os.close(descriptor)
        return None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the lock for a change. Raises UsageError, which names the holder, where another
        process has it. The kernel frees the lock when its holder dies, however it dies.

        Where the lock's file cannot be opened: raises UsageError, or, where the journal is not
        needed, says so and holds nothing."""
        try:
            descriptor = self._locked()
        except OSError as error:
            if self._needed:
                raise UsageError(
                    f"the lock cannot be used: {error.strerror}",
                    where=str(self._lock_file),
                    remedy="run as the user that owns it, or free space on its disk",
                ) from error
            self._say(
                f"{self._lock_file}: {error.strerror}; no other change on these servers may run "
                "beside this command"
            )
            yield
            return
        if descriptor is None:
            raise UsageError(
                f"another change is under way: {self._named_holder()}",
                where=str(self._lock_file),
                remedy="wait for it to end, or interrupt it (Ctrl-C): it restores the network",
            )
        try:
            mine = {"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            # This only informs others: a full disk must not keep `recover` from running.
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(mine).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _locked(self) -> int | None:
        """Returns a descriptor that holds the lock until it is closed; None where it is held. Only
        the file's owner may open it: whoever can read it could hold the lock. Raises OSError."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)  # A former release made it readable by all.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _named_holder(self) -> str:
        try:
            holder = json.loads(self._lock_file.read_bytes())
            return f"process {holder['pid']}, since {holder['since']}"
        except (ValueError, KeyError):  # it names itself a moment after it gets the lock
            return "it has just begun"

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self.lost is not None:
            raise self._failed(self.lost)
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._failed(str(error)) from error
            raise

    def _read(self, query: str, *values: object) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(str(error)) from error

    def _failed(self, why: str) -> JournalFailed:
        return JournalFailed(
            why,
            where=str(self._file),
            remedy="free space on its disk, end the program that holds the file, or restore it "
            "from a backup",
        )

    def _record(self, decision: int, phase: str, detail: str) -> None:
        self._database.execute(
            "INSERT INTO phases (decision, phase, unix_seconds, detail) VALUES (?, ?, ?, ?)",
            (decision, phase, time.time(), detail),
        )

    def _decision(self, decision: int, plan_name: str, plan_digest: str) -> Decision:
        generations = self._read(
            "SELECT server, generation FROM generations WHERE decision = ?", decision
        )
        phases = self._read(
            "SELECT phase, unix_seconds, detail FROM phases WHERE decision = ? ORDER BY rowid",
            decision,
        )
        return Decision(
            id=decision,
            plan_name=plan_name,
            plan_digest=plan_digest,
            generations=dict(generations),
            phases=tuple(Phase(*phase) for phase in phases),
        )


def _require_own(directory: Path) -> None:
    """Makes the folder, or takes it from others to write to: they could exchange journal and lock.
    Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    found = directory.stat()
    there = {path.name for path in directory.iterdir()}
    ours = not there or bool(there & {_FILE, "apply.lock", "ca"})
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        # A folder for everybody, as /tmp is, stays so.
        if found.st_uid != os.geteuid() or not ours or found.st_mode & stat.S_ISVTX:
            why = "others can write to this folder; give one of its own"
            raise PermissionError(1, why, str(directory))
        directory.chmod(stat.S_IMODE(found.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _opened(file: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
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


def _copied(file: Path) -> sqlite3.Connection:
    """A journal in memory, with what can be read of the file."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    copy.executescript(_SCHEMA)
    uri = f"{file.absolute().as_uri()}?mode=rw"
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as database,
    ):
        # Otherwise SQLite needs a second file, for which a full disk has no room.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        for table in _TABLES:
            if rows := database.execute(f"SELECT * FROM {table}").fetchall():
                marks = ", ".join("?" * len(rows[0]))
                copy.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    return copy
