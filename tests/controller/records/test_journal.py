"""The journal: on disk when it says so, generations only go up, one change at a time."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import placewire.controller.records.journal_file as journal_files
from placewire.controller.agents.authority import Authority
from placewire.controller.cli import main
from placewire.controller.commands.session import authority_of
from placewire.controller.errors import JournalFailed, UsageError
from placewire.controller.records import change_lock
from placewire.controller.records.change_lock import ChangeLock
from placewire.controller.records.journal import Journal, removed_on, to_remove_on


def test_a_decision_s_phases_are_kept_over_reopening(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        first = journal.begin("plan", "d1", {"s1": 1, "s2": 4})
        journal.decide(first, "committed")
        second = journal.begin("plan", "d2", {"s1": 2})
        journal.decide(first, "restored", detail="as it was")
    with Journal.open(tmp_path) as journal:
        decisions = journal.decisions()
    assert [(d.id, d.plan_digest, d.generations) for d in decisions] == [
        (first, "d1", {"s1": 1, "s2": 4}),
        (second, "d2", {"s1": 2}),
    ]
    assert [p.name for p in decisions[0].phases] == ["staged", "committed", "restored"]
    assert decisions[0].phases[-1].detail == "as it was"
    assert [p.name for p in decisions[1].phases] == ["staged"]


def test_a_generation_that_does_not_go_up_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.begin("plan", "d1", {"s1": 5})
        with pytest.raises(ValueError, match="s1: generation 5 was used already"):
            journal.begin("plan", "d2", {"s2": 9, "s1": 5})
        assert len(journal.decisions()) == 1
        assert journal.next_generation("s2", 0) == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["s1", "s2"]), st.integers(0, 50)), max_size=8))
def test_the_next_generation_is_above_all_that_was_used_or_reported(
    steps: list[tuple[str, int]],
) -> None:
    highest = {"s1": 0, "s2": 0}
    with tempfile.TemporaryDirectory() as folder, Journal.open(Path(folder)) as journal:
        for server, reported in steps:
            generation = journal.next_generation(server, reported)
            assert generation > max(highest[server], reported)
            journal.begin("plan", "d", {server: generation})
            highest[server] = generation


def test_a_long_journal_is_read_in_as_many_questions_as_a_short_one(tmp_path: Path) -> None:
    """Otherwise the time for it grows with the square of its decisions."""
    asked: list[str] = []
    with Journal.open(tmp_path) as journal:
        for generation in range(1, 31):
            decision = journal.begin("plan", f"{generation}", {"s1": generation, "s2": generation})
            journal.decide(decision, "committed")
        journal._file.database.set_trace_callback(asked.append)
        found = journal.decisions()
    assert len(asked) == 3
    assert [one.id for one in found] == [*range(1, 31)]
    assert all(one.generations == {"s1": one.id, "s2": one.id} for one in found)
    assert {tuple(phase.name for phase in one.phases) for one in found} == {("staged", "committed")}


def test_runs_are_kept_by_plan(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.record_run("a", '{"n": 1}')
        journal.record_run("b", '{"n": 2}')
        journal.record_run("a", '{"n": 3}')
        assert [run.report for run in journal.runs("a")] == ['{"n": 1}', '{"n": 3}']
        assert [run.plan_name for run in journal.runs()] == ["a", "b", "a"]


HOLD = """
import sys
from pathlib import Path
from placewire.controller.records.journal import Journal
with Journal.open(Path(sys.argv[1])) as journal, journal.change_lock.exclusive():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_change_is_told_who_holds_the_first_and_a_dead_holder_lets_go(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with Journal.open(tmp_path) as journal:
            with pytest.raises(UsageError, match=f"process {holder.pid}, since 2"):
                with journal.change_lock.exclusive():
                    pass
            holder.kill()
            holder.wait()
            with journal.change_lock.exclusive():
                pass


LOOK = """
import fcntl, os, sys
from pathlib import Path
from placewire.controller.records.change_lock import ChangeLock
looks, flock = 0, fcntl.flock
def seen(descriptor, how):
    global looks
    flock(descriptor, how)
    if not looks:
        looks = 1
        print("looks", flush=True)
        sys.stdin.readline()
fcntl.flock = seen
print(ChangeLock(Path(sys.argv[1]), print, needed=True).holder(), flush=True)
"""


def test_who_only_looks_keeps_no_change_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands look for a moment; neither takes the other for a change."""
    lock = ChangeLock(tmp_path, print, needed=True)
    with lock.exclusive():  # Who only looks makes no file of it.
        pass
    monkeypatch.setattr(change_lock, "_LOOKS_SECONDS", 60.0)
    with subprocess.Popen(
        [sys.executable, "-c", LOOK, str(tmp_path)], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as looking:  # fmt: skip
        assert looking.stdout is not None and looking.stdin is not None
        assert looking.stdout.readline() == "looks\n"
        assert lock.holder() is None
        told = looking.stdin
        goes_on = threading.Timer(0.3, lambda: (told.write("\n"), told.flush()))
        goes_on.start()
        with lock.exclusive():
            assert looking.stdout.readline() == "None\n"
        goes_on.join()


def test_a_change_that_is_stopped_is_told_as_that(tmp_path: Path) -> None:
    """After Ctrl-Z it ends neither by itself nor by Ctrl-C."""
    lock = ChangeLock(tmp_path, print, needed=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holding:
        assert holding.stdout is not None and holding.stdout.readline() == b"held\n"
        assert "stopped" not in str(lock.holder())
        holding.send_signal(signal.SIGSTOP)
        os.waitpid(holding.pid, os.WUNTRACED)
        hint = f"which is stopped (Ctrl-Z); `kill -CONT {holding.pid}` has it go on"
        assert str(lock.holder()).endswith(hint)
        with pytest.raises(UsageError, match="is stopped"), lock.exclusive():
            pass
        holding.send_signal(signal.SIGCONT)


def test_what_was_begun_survives_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from placewire.controller.records.journal import Journal\n"
        "with Journal.open(Path(sys.argv[1])) as j:\n"
        "    j.begin('plan', 'd', {'s1': 7}); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert done.returncode == -9
    with Journal.open(tmp_path) as journal:
        assert journal.next_generation("s1", 0) == 8
        assert [d.phases[-1].name for d in journal.decisions()] == ["staged"]


def test_a_folder_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="journal"):
        with Journal.open(tmp_path / "file"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- a journal that cannot be written --------------------------------------------------------------


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_files, "_WAIT_SECONDS", 0.05)


@contextmanager
def full_disk() -> Iterator[None]:
    """The kernel refuses every byte that would make a file longer."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@contextmanager
def held(folder: Path, *, wholly: bool = False) -> Iterator[None]:
    """Another program is writing to the journal; wholly: nobody can read it meanwhile either."""
    with closing(sqlite3.connect(folder / "journal.sqlite3", isolation_level=None)) as other:
        if wholly:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.parametrize("hindrance", ["full", "held"])
def test_what_cannot_be_written_is_said_and_the_next_note_is_written(
    tmp_path: Path, hindrance: str
) -> None:
    said: list[str] = []
    with Journal.open(tmp_path, said.append) as journal:
        first = journal.begin("plan", "d1", {"s1": 1})
        with full_disk() if hindrance == "full" else held(tmp_path):
            journal.note(first, "destroyed")
            journal.note_removals("plan", ["s1"])
            with pytest.raises(JournalFailed):
                journal.record_run("plan", "{}")
            with pytest.raises(JournalFailed):
                journal.begin("plan", "d2", {"s1": 2})
        assert len(said) == 2 and "does not have that it is 'destroyed'" in said[0]
        journal.note(first, "restored")
        assert [phase.name for phase in journal.decisions()[0].phases] == ["staged", "restored"]
        assert journal.runs() == () and len(said) == 2


def test_a_command_that_needs_the_journal_refuses_without_it(tmp_path: Path) -> None:
    with Journal.open(tmp_path):
        pass
    with held(tmp_path, wholly=True), pytest.raises(UsageError, match="is locked"):
        with Journal.open(tmp_path):
            pass


def test_an_undo_goes_on_without_a_journal_that_nobody_can_read(tmp_path: Path) -> None:
    said: list[str] = []
    with Journal.open(tmp_path) as journal:
        journal.begin("plan", "d1", {"s1": 1})
    with held(tmp_path, wholly=True), Journal.open(tmp_path, said.append, needed=False) as journal:
        assert journal.lost is not None and "locked" in journal.lost
        with journal.change_lock.exclusive():
            assert journal.decisions() == () and journal.holding("plan") == frozenset()
            journal.note(1, "destroyed")
    assert len(said) == 2 and "goes on without it" in said[0] and "'destroyed'" in said[1]
    with Journal.open(tmp_path) as journal:
        assert journal.decisions()[0].last_phase == "staged"


def test_an_undo_reads_what_a_full_disk_still_has(tmp_path: Path) -> None:
    """A controller was killed, so that its last rows are not in the file but in the log beside it;
    there is no room for SQLite's third file."""
    script = (
        "import os, sys; from pathlib import Path\n"
        "from placewire.controller.records.journal import Journal\n"
        "with Journal.open(Path(sys.argv[1])) as j:\n"
        "    j.begin('plan', 'd', {'s1': 7}); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    (tmp_path / "journal.sqlite3-shm").unlink()
    said: list[str] = []
    with full_disk(), Journal.open(tmp_path, said.append, needed=False) as journal:
        assert journal.lost is not None
        assert [d.last_phase for d in journal.decisions()] == ["staged"]
        with pytest.raises(JournalFailed):
            journal.begin("plan", "d2", {"s1": 8})
        with journal.change_lock.exclusive():
            journal.note(1, "restored")
    assert len(said) == 2
    with Journal.open(tmp_path) as journal:
        assert [d.last_phase for d in journal.decisions()] == ["staged"]


def test_an_undo_goes_on_without_a_damaged_journal_and_its_lock(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").write_bytes(b"no database " * 1000)
    (tmp_path / "apply.lock").mkdir()
    said: list[str] = []
    with Journal.open(tmp_path, said.append, needed=False) as journal:
        assert journal.change_lock.holder() is None and journal.decisions() == ()
        with journal.change_lock.exclusive():
            pass
    assert "not a database" in said[0] and "apply.lock: Is a directory" in said[1]
    (tmp_path / "journal.sqlite3").unlink()
    with Journal.open(tmp_path) as journal, pytest.raises(UsageError, match="the lock cannot be"):
        with journal.change_lock.exclusive():
            pass


# -- who can hold it -------------------------------------------------------------------------------


def test_no_other_user_can_open_the_lock_or_exchange_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    (state / "apply.lock").touch()
    (state / "apply.lock").chmod(0o644)
    with Journal.open(state) as journal, journal.change_lock.exclusive():
        assert stat.S_IMODE((state / "apply.lock").stat().st_mode) == 0o600
        assert stat.S_IMODE(state.stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_a_folder_that_is_not_a_controllers_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    """As /tmp, or a folder that a group shares."""
    (tmp_path / "of others").touch()
    tmp_path.chmod(mode)
    with pytest.raises(UsageError, match="give one of its own"):
        with Journal.open(tmp_path):
            pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


def test_a_folder_of_somebody_else_that_others_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="others can write to this folder"):
        with Journal.open(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


# Locks that whoever may read a file can take, held until its input ends.
HOLDING = """
import fcntl, sys
files = []
for name in sys.argv[1:]:
    try:
        files.append(open(name, "rb"))
        fcntl.lockf(files[-1], fcntl.LOCK_SH)
    except OSError as error:
        print(error)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program of another user")
def test_no_other_user_can_hold_the_journal() -> None:
    """A former release's journal could be read by all, and so be held by all."""
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        with Journal.open(folder) as journal:
            decision = journal.begin("plan", "digest", {"s1": 1})
            files = sorted(folder.glob("journal.sqlite3*"))
            assert len(files) == 3 and {path.stat().st_mode & 0o077 for path in files} == {0}
        (folder / "journal.sqlite3").chmod(0o644)
        with Journal.open(folder) as journal:
            journal.decisions()
            # The interpreter of a virtual environment may be in a folder that is closed to others.
            with subprocess.Popen(
                ["/usr/bin/python3", "-c", HOLDING, *map(str, files)], user=65534, group=65534,
                extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
            ) as other:  # fmt: skip
                assert other.stdout is not None and other.stdin is not None
                while other.stdout.readline() != b"held\n":
                    assert other.poll() is None
                journal.decide(decision, "committed")
                other.stdin.close()
        with Journal.open(folder) as journal:
            assert journal.decisions()[0].last_phase == "committed"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_journal_in_somebody_s_folder_can_still_be_read_by_them(tmp_path: Path) -> None:
    """As with sudo."""
    os.chown(tmp_path, 65534, 65534)
    with Journal.open(tmp_path):
        pass
    file = tmp_path / "journal.sqlite3"
    file.chmod(0o644)
    with Journal.open(tmp_path):
        assert stat.S_IMODE(file.stat().st_mode) == 0o644


PLACES = (
    "ca", "ca/authority.key", "ca/lock", "apply.lock", "journal.sqlite3", "journal.sqlite3-wal",
    "refused.jsonl", "logs",
)  # fmt: skip


def issued(state: Path) -> int:
    """The exit status of a command that needs the authority alone."""
    with pytest.raises(SystemExit) as ended:
        main(["authority", "issue", "s1", "--out", f"{state}-out", "--state-dir", str(state)])
    return int(str(ended.value.code))


def full_folder(state: Path) -> Path:
    Authority.load(state / "ca").revocations.deny("s1")
    for name in PLACES:
        if not (state / name).exists():
            (state / name).touch()
    return state


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("name", PLACES)
def test_what_another_user_put_into_the_folder_is_not_used(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They could while the folder was open to them."""
    state = full_folder(tmp_path / "state")
    os.chown(state / name, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"):
        with Journal.open(state):
            pass
    assert issued(state) == 2 and f"{state / name}: " in capsys.readouterr().err
    os.chown(state / name, 0, 0)
    assert issued(state) == 0


@pytest.mark.parametrize("name", ["ca", "ca/authority.crt", "apply.lock", "journal.sqlite3"])
def test_a_link_in_the_place_of_the_controller_s_files_is_not_followed(
    tmp_path: Path, name: str
) -> None:
    state = full_folder(tmp_path / "state")
    (state / name).rename(tmp_path / "elsewhere")
    (state / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link"):
        with Journal.open(state):
            pass
    assert issued(state) == 2


@pytest.mark.parametrize("name", ["ca/authority.key", "ca/lock", "apply.lock"])
def test_a_pipe_in_the_place_of_the_controller_s_files_is_not_waited_for(
    tmp_path: Path, name: str
) -> None:
    state = full_folder(tmp_path / "state")
    (state / name).unlink(missing_ok=True)
    os.mkfifo(state / name)
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        with Journal.open(state):
            pass
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        authority_of(state)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_the_folder_s_owner_is_the_operator_whoever_runs_a_command(tmp_path: Path) -> None:
    """As with sudo."""
    state = full_folder(tmp_path / "state")
    for path in (state, *state.rglob("*")):
        os.chown(path, 65534, 65534)
    assert issued(state) == 0


# -- who keeps a plan's network --------------------------------------------------------------------


def test_a_server_keeps_a_plan_until_it_is_destroyed(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:

        def kept(*servers: str) -> int:
            generations = {server: journal.next_generation(server, 0) for server in servers}
            decision = journal.begin("plan", "d", generations)
            journal.keep(decision, dict.fromkeys(servers, "{}"))
            journal.note(decision, "kept")
            return decision

        journal.note(journal.begin("plan", "d", {"s9": 1}), "restored")
        kept("s1", "s2", "s3")
        assert journal.holding("plan") == {"s1", "s2", "s3"} and not journal.holding("other")
        latest = kept("s1", "s2")
        assert journal.holding("plan") == {"s1", "s2", "s3"}, "nobody destroyed it on s3"
        journal.note(latest, "destroyed")
        assert journal.holding("plan") == {"s3"}, "as a former release recorded it"
        journal.note_removals("plan", ["s3"])
        assert journal.holding("plan") == frozenset(), "what the former one destroyed stays so"
        latest = kept("s1", "s2")
        journal.note_removals("plan", ["s1"])
        journal.note(latest, "destroyed", detail=removed_on(["s1"]))
        assert journal.holding("plan") == {"s2"}, "as this one records it"
        journal.note_removals("plan", ["s2"])
        assert journal.holding("plan") == frozenset()
        kept("s3")
        assert journal.holding("plan") == {"s3"}


def test_what_is_to_be_in_force_is_known_of_each_server(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:

        def kept(ended: str, *servers: str, away: str = "") -> int:
            generations = {server: journal.next_generation(server, 0) for server in servers}
            decision = journal.begin("plan", "d", generations)
            journal.keep(decision, dict.fromkeys([*servers, *away.split()], "{}"))
            if ended:
                journal.note(decision, ended)
            return decision

        first = kept("kept", "s1", "s2", "s3")
        second = kept("kept", "s1", "s2")
        assert journal.in_force("plan") == {"s1": second, "s2": second, "s3": first}
        failed = kept("restore failed", "s1", "s2", "s4")
        assert journal.in_force("plan") == {"s1": second, "s2": second, "s3": first}
        assert "s4" in journal.holding("plan"), "it may keep it"
        whole = kept("", "s1", "s2", away="s3")
        assert journal.in_force("plan") == {"s1": whole, "s2": whole, "s3": whole}
        assert journal.in_force("plan", before=failed) == {"s1": second, "s2": second, "s3": first}
        assert journal.in_force("other") == {}
        journal.note_removals("plan", ["s1"])
        assert journal.in_force("plan") == {"s2": whole, "s3": whole}


def test_a_destroy_is_of_more_servers_than_its_decision(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        decision = journal.begin("plan", "d", {"s1": 1, "s2": 1})
        journal.note(decision, "destroy decided")
        assert journal.decisions()[0].to_destroy == ("s1", "s2"), "as a former release has it"
        journal.note(decision, "destroy decided", detail=to_remove_on(["s1", "s2", "s3"]))
        assert journal.decisions()[0].to_destroy == ("s1", "s2", "s3")


def test_a_journal_that_cannot_be_read_wholly_is_read_as_none(tmp_path: Path) -> None:
    """A decision without its last phases would be ended in another way than it was to be."""
    with Journal.open(tmp_path) as journal:
        journal.begin("plan", "d1", {"s1": 1})
    file = tmp_path / "journal.sqlite3"
    with closing(journal_files.copied(file)) as whole:
        assert whole.execute("SELECT count(*) FROM phases").fetchone() == (1,)
    with closing(sqlite3.connect(file)) as other:
        other.execute("DROP TABLE removals")
        other.commit()
    with closing(journal_files.copied(file)) as of_former_release:
        assert of_former_release.execute("SELECT count(*) FROM decisions").fetchone() == (1,)
    with closing(sqlite3.connect(file)) as other:
        other.execute("ALTER TABLE phases DROP COLUMN detail")
        other.commit()
    with closing(journal_files.copied(file)) as part:
        assert part.execute("SELECT count(*) FROM decisions").fetchone() == (0,)
