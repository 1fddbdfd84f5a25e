"""The controller's journal on disk: decisions, their phases and generations, and runs.

A decision is on disk before it is acted on. Rows of the SQLite file are only ever added: each phase
is a row, so that the history of a decision can be read. A lock file lets one change run at a time,
and says which process runs it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.errors import UsageError

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
"""


@dataclass(frozen=True)
class Phase:
    name: str
    unix_seconds: float
    detail: str


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


class Journal:
    """To be used from one thread. What a method changes is on disk when the method returns."""

    def __init__(self, directory: Path) -> None:
        self._lock_file = directory / "apply.lock"
        self._database = sqlite3.connect(directory / "journal.sqlite3", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("PRAGMA foreign_keys = ON")
        self._database.executescript(_SCHEMA)

    @classmethod
    @contextmanager
    def open(cls, directory: Path) -> Iterator[Journal]:
        """Makes the journal if there is none. Raises UsageError where the folder cannot be used."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            journal = cls(directory)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"the journal cannot be used: {error}",
                where=str(directory),
                remedy="run as the user that owns it, or give another --state-dir",
            ) from error
        with closing(journal._database):
            yield journal

    def next_generation(self, server: str, reported: int) -> int:
        """Returns a generation above all that this journal has for the server, and above the one
        that its agent reports, which another controller or a lost journal may have given it."""
        row = self._database.execute(
            "SELECT max(generation) FROM generations WHERE server = ?", (server,)
        ).fetchone()
        return max(row[0] or 0, reported) + 1

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
        return dict(
            self._database.execute(
                "SELECT server, state FROM states WHERE decision = ?", (decision,)
            ).fetchall()
        )

    def decisions(self) -> tuple[Decision, ...]:
        """All decisions, oldest first."""
        rows = self._database.execute(
            "SELECT id, plan_name, plan_digest FROM decisions ORDER BY id"
        ).fetchall()
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
        rows = self._database.execute(
            "SELECT plan_name, unix_seconds, report FROM runs WHERE ?1 IS NULL OR plan_name = ?1 "
            "ORDER BY id",
            (plan_name,),
        ).fetchall()
        return tuple(Run(*row) for row in rows)

    def holder(self) -> str | None:
        """Names the process that has a change under way; None where there is none."""
        if (descriptor := self._locked()) is None:
            return self._named_holder()
        os.close(descriptor)
        return None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the lock for a change. Raises UsageError, which names the holder, where another
        process has it. The kernel frees the lock when its holder dies, however it dies."""
        if (descriptor := self._locked()) is None:
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
        """Returns a descriptor that holds the lock until it is closed; None where it is held."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
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
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _record(self, decision: int, phase: str, detail: str) -> None:
        self._database.execute(
            "INSERT INTO phases (decision, phase, unix_seconds, detail) VALUES (?, ?, ?, ?)",
            (decision, phase, time.time(), detail),
        )

    def _decision(self, decision: int, plan_name: str, plan_digest: str) -> Decision:
        generations = self._database.execute(
            "SELECT server, generation FROM generations WHERE decision = ?", (decision,)
        ).fetchall()
        phases = self._database.execute(
            "SELECT phase, unix_seconds, detail FROM phases WHERE decision = ? ORDER BY rowid",
            (decision,),
        ).fetchall()
        return Decision(
            id=decision,
            plan_name=plan_name,
            plan_digest=plan_digest,
            generations=dict(generations),
            phases=tuple(Phase(*phase) for phase in phases),
        )
