"""The controller's journal on disk: decisions, their phases and generations, and runs.

A decision is on disk before it is acted on. Rows of the SQLite file are only ever added: each phase
is a row, so that the history of a decision can be read.

Undoing needs no journal: where another process holds it, the disk is full or the file is damaged,
what became of servers is told (`Journal.note`) instead of written.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.errors import JournalFailed, UsageError
from placewire.controller.records.change_lock import ChangeLock
from placewire.controller.records.journal_file import (
    FILE_NAME,
    JournalFile,
    copied,
    in_memory,
    is_made,
    opened,
    require_own,
)
from placewire.controller.records.phase_words import phase_in_words

# The detail of a destroyed decision that says on which servers; a former release's does not.
_NAMES_SERVERS = re.compile(r"(^|, )removed on ")
_TO_REMOVE_ON = "on "
_ONLY = "only "
_DESTROY_DECIDED = "destroy decided"
# They end a destroy after which the decision stands as before it.
_DESTROY_ENDS = ("destroy refused", "destroyed in part")


@dataclass(frozen=True)
class Phase:
    name: str
    unix_seconds: float
    detail: str


def removed_on(servers: Collection[str]) -> str:
    """The detail of the phase `destroyed`: a decision may be destroyed on some servers only."""
    return f"removed on {' '.join(servers)}"


def to_remove_on(servers: Collection[str], *, all_of_plan: bool = True) -> str:
    """The detail of the phase `destroy decided`: the plan may be destroyed on more servers than its
    latest decision has, or on some of its servers only."""
    return f"{'' if all_of_plan else _ONLY}{_TO_REMOVE_ON}{' '.join(servers)}"


def _servers_in(detail: str) -> list[str]:
    """Servers that the detail of a phase `destroy decided` names; a former release's names none."""
    return detail.removeprefix(_ONLY).removeprefix(_TO_REMOVE_ON).split()


def _to_destroy(phase: Phase) -> frozenset[str]:
    return frozenset(_servers_in(phase.detail) if phase.name == _DESTROY_DECIDED else ())


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
        """The last phase that stands: a destroy that every server refused, or that was for some
        servers only, leaves the phase before it."""
        return self._standing[-1].name

    @property
    def phase_before_destroy(self) -> str:
        """The last phase, but for a destroy that is not ended."""
        standing = [phase.name for phase in self._standing]
        return next(name for name in reversed(standing) if name != _DESTROY_DECIDED)

    @property
    def was_destroyed_by_former_release(self) -> bool:
        """It did not record which servers it destroyed: all of the decision."""
        last = self._standing[-1]
        return last.name == "destroyed" and not _NAMES_SERVERS.search(last.detail)

    @property
    def was_kept(self) -> bool:
        """Whether every server confirmed that it keeps this decision without a lease."""
        return any(phase.name == "kept" for phase in self.phases)

    @property
    def was_decided_to_keep(self) -> bool:
        """Whether some servers may keep this decision without a lease."""
        return any(phase.name == "keep decided" for phase in self.phases)

    @property
    def to_destroy(self) -> tuple[str, ...]:
        """Servers on which it was decided last to destroy the plan. A former release recorded none:
        those of the decision."""
        named = _servers_in(self._destroy_decided)
        return tuple(named or self.generations)

    @property
    def destroy_is_partial(self) -> bool:
        """Whether the plan is to stay on the servers that are not in to_destroy."""
        return self._destroy_decided.startswith(_ONLY)

    @property
    def _destroy_decided(self) -> str:
        details = [phase.detail for phase in self._standing if phase.name == _DESTROY_DECIDED]
        return details[-1] if details else ""

    @property
    def _standing(self) -> list[Phase]:
        standing: list[Phase] = []
        for phase in self.phases:
            if phase.name not in _DESTROY_ENDS:
                standing.append(phase)
            elif standing[-1].name == _DESTROY_DECIDED:  # The journal may not have taken it.
                ended = _to_destroy(standing.pop())
                # It answers for those that were cut off before it, on no other servers.
                while (earlier := _to_destroy(standing[-1])) and earlier <= ended:
                    standing.pop()
        return standing


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
        file: JournalFile,
        say: Callable[[str], None] = _tell,
        *,
        needed: bool = True,
    ) -> None:
        self._file, self._say, self.lost = file, say, file.lost
        self.change_lock = ChangeLock(directory, say, needed=needed)

    @classmethod
    @contextmanager
    def open(
        cls,
        directory: Path,
        say: Callable[[str], None] = _tell,
        *,
        needed: bool = True,
        makes: bool = True,
    ) -> Iterator[Journal]:
        """say: told what could not be written, where the caller goes on all the same.

        needed: raises UsageError where the journal cannot be used. Otherwise says so, and gives a
        journal that has what can still be read, perhaps nothing, and into which nothing is written.
        makes: makes the journal, and its folder, if there is none. Otherwise gives one that has
        nothing, and into which nothing is written; this is for commands that only look.
        """
        lost, path = None, directory / FILE_NAME
        try:
            if makes or is_made(path):
                require_own(directory)
                database = opened(path)
            else:
                lost, database = "this command makes no journal", in_memory()
        except (OSError, sqlite3.Error) as error:
            if needed:
                raise UsageError(
                    f"the journal cannot be used: {error}",
                    where=str(directory),
                    remedy="run as the user that owns it, free space on its disk, end the program "
                    "that holds the file, or give another --state-dir",
                ) from error
            lost, database = str(error), copied(path)
            say(f"{path} cannot be written: {lost}; this command goes on without it")
        with closing(database):
            yield cls(directory, JournalFile(path, database, lost), say, needed=needed)

    def next_generation(self, server: str, reported: int) -> int:
        """Returns a generation above all that this journal has for the server, and above the one
        that its agent reports, which another controller or a lost journal may have given it."""
        ((highest,),) = self._file.read(
            "SELECT max(generation) FROM generations WHERE server = ?", server
        )
        return max(highest or 0, reported) + 1

    def begin(self, plan_name: str, plan_digest: str, generations: Mapping[str, int]) -> int:
        """Records a staged decision; returns its id. Raises ValueError unless generations go up."""
        with self._file.transaction():
            for server, generation in generations.items():
                if generation < (least := self.next_generation(server, 0)):
                    raise ValueError(
                        f"{server}: generation {generation} was used already; generations only go "
                        f"up, the next is {least}"
                    )
            cursor = self._file.database.execute(
                "INSERT INTO decisions (plan_name, plan_digest) VALUES (?, ?)",
                (plan_name, plan_digest),
            )
            decision = cursor.lastrowid
            assert decision is not None
            self._file.database.executemany(
                "INSERT INTO generations (decision, server, generation) VALUES (?, ?, ?)",
                [(decision, server, generation) for server, generation in generations.items()],
            )
            self._record(decision, "staged", "")
        return decision

    def decide(self, decision: int, phase: str, *, detail: str = "") -> None:
        """phase: committed, kept, restored, restore failed, destroy decided, destroy refused,
        destroyed in part, destroyed, finished (by a later decision)."""
        with self._file.transaction():
            self._record(decision, phase, detail)

    def note(self, decision: int, phase: str, *, detail: str = "") -> None:
        """Records as `decide` does what became of the servers. Where that cannot be written, says
        so and raises nothing: nobody's network may wait for a file."""
        try:
            self.decide(decision, phase, detail=detail)
        except JournalFailed as error:
            self._say(
                f"decision {decision}: the journal does not have that it is "
                f"{phase_in_words(phase)!r}: {error.what}; `controller history`, `status` and "
                "`recover` go by what it has"
            )

    def remove(self, plan_name: str, servers: Collection[str]) -> None:
        """Records that nothing of the plan is left on these servers, or is to be undone there."""
        with self._file.transaction():
            self._file.database.executemany(
                "INSERT INTO removals (plan_name, server, latest_decision) "
                "SELECT ?, ?, coalesce(max(id), 0) FROM decisions",
                [(plan_name, server) for server in servers],
            )

    def note_removals(self, plan_name: str, servers: Collection[str]) -> None:
        """Records as `remove` does that these servers were destroyed. Says where it cannot."""
        try:
            self.remove(plan_name, servers)
        except JournalFailed as error:
            named = ", ".join(servers)
            self._say(f"{named}: the journal does not have that they were destroyed: {error.what}")

    def holding(self, plan_name: str) -> frozenset[str]:
        """Servers that, by this journal, may keep a network of the plan: told to keep a decision
        that was not undone everywhere, and destroyed neither with it nor since."""
        return frozenset(self._kept_on(plan_name, undone=("restored",)))

    def in_force(self, plan_name: str, *, before: int | None = None) -> Mapping[str, int]:
        """By server, the decision of the plan that is to be in force there without a lease. Servers
        where none is are left out. before: as if this decision and all later ones had never been
        made."""
        return self._kept_on(plan_name, undone=("restored", "restore failed"), before=before)

    def removed(self, plan_name: str) -> Mapping[str, int]:
        """By server, the last decision that had been made when the plan was destroyed there."""
        query = "SELECT server, max(latest_decision) FROM removals WHERE plan_name = ? "
        return dict(self._file.read(f"{query} GROUP BY server", plan_name))

    def _kept_on(
        self, plan_name: str, *, undone: Collection[str], before: int | None = None
    ) -> dict[str, int]:
        """undone: the last phases of decisions that no longer count; a destroy counts by its
        removals."""
        removed = self.removed(plan_name)
        kept: dict[str, int] = {}
        for one in self.decisions():
            if one.plan_name != plan_name or (before is not None and one.id >= before):
                continue
            if one.was_destroyed_by_former_release:
                kept = {s: decision for s, decision in kept.items() if s not in one.generations}
            elif one.was_decided_to_keep and one.phase_before_destroy not in undone:
                kept |= dict.fromkeys(self.servers_to_keep(one), one.id)
        return {s: decision for s, decision in kept.items() if decision > removed.get(s, 0)}

    def keep(self, decision: int, states: Mapping[str, str]) -> None:
        """Records that servers are about to keep the decision without a lease. states: each
        server's desired state as JSON, for a later rollback to this decision; also of servers that
        are away, and are to keep it once they are back."""
        with self._file.transaction():
            self._file.database.executemany(
                "INSERT INTO states (decision, server, state) VALUES (?, ?, ?)",
                [(decision, server, state) for server, state in states.items()],
            )
            self._record(decision, "keep decided", "")

    def servers_to_keep(self, decision: Decision) -> tuple[str, ...]:
        """Servers of a decision that was to be kept, with those that were away."""
        rows = self._file.read("SELECT server FROM states WHERE decision = ?", decision.id)
        return tuple(server for (server,) in rows) or tuple(decision.generations)

    def states(self, decision: int) -> Mapping[str, str]:
        """Desired states as JSON, by server, of a decision that was kept; else empty."""
        return dict(
            self._file.read("SELECT server, state FROM states WHERE decision = ?", decision)
        )

    def decisions(self) -> tuple[Decision, ...]:
        """All decisions, oldest first. Each table is read once: one look for each decision takes a
        time that grows with the square of them, in which no agent is heard."""
        # First: what another process adds meanwhile is then left out, and no decision lacks a part.
        rows = self._file.read("SELECT id, plan_name, plan_digest FROM decisions ORDER BY id")
        generations: dict[int, dict[str, int]] = {}
        for one, server, generation in self._file.read(
            "SELECT decision, server, generation FROM generations ORDER BY rowid"
        ):
            generations.setdefault(one, {})[server] = generation
        phases: dict[int, list[Phase]] = {}
        for one, *phase in self._file.read(
            "SELECT decision, phase, unix_seconds, detail FROM phases ORDER BY rowid"
        ):
            phases.setdefault(one, []).append(Phase(*phase))
        return tuple(
            Decision(
                id=one,
                plan_name=plan_name,
                plan_digest=plan_digest,
                generations=generations.get(one, {}),
                phases=tuple(phases.get(one, ())),
            )
            for one, plan_name, plan_digest in rows
        )

    def record_run(self, plan_name: str, report: str) -> None:
        """report: the run's report as JSON."""
        with self._file.transaction():
            self._file.database.execute(
                "INSERT INTO runs (plan_name, unix_seconds, report) VALUES (?, ?, ?)",
                (plan_name, time.time(), report),
            )

    def runs(self, plan_name: str | None = None, latest: int | None = None) -> tuple[Run, ...]:
        """Runs of this plan, or of all plans; oldest first. latest: so many, the last ones."""
        rows = self._file.read(
            "SELECT plan_name, unix_seconds, report FROM runs WHERE ?1 IS NULL OR plan_name = ?1 "
            "ORDER BY id DESC LIMIT ?2",
            plan_name,
            -1 if latest is None else latest,
        )
        return tuple(Run(*row) for row in rows)[::-1]

    def _record(self, decision: int, phase: str, detail: str) -> None:
        self._file.database.execute(
            "INSERT INTO phases (decision, phase, unix_seconds, detail) VALUES (?, ?, ?, ?)",
            (decision, phase, time.time(), detail),
        )
