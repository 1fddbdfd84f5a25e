"""Ranks over a real sshd on this machine: all that holds in a lab holds, host keys are checked, no
secret is in lists of processes, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from placewire.controller.errors import JobFailed, LaunchFailed
from placewire.controller.launch.job_status import job_status
from placewire.controller.launch.launcher import RANK_PROGRAM
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer
from placewire.controller.records.journal import Journal
from placewire.controller.story.left_ranks import left_ranks
from tests.controller.launch.rank_programs import (
    GOES_ON,
    SAVES,
    kill_once_two_ranks_are_heard,
    script_specs,
)
from tests.controller.launch.ssh_stage import PRIVATE, Stage, folders, launcher_of
from tests.controller.launch.sshd import Keys
from tests.controller.plans import plan
from tests.free_port import free_port
from tests.paths import ROOT

pytestmark = pytest.mark.network


async def gone(stage: Stage, seconds: float = 60) -> bool:
    """Whether all of its processes end soon."""
    until = time.monotonic() + seconds
    while stage.left() and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return not stage.left()


async def test_events_come_back_and_nothing_stays(login: Login, tmp_path: Path) -> None:
    source = f"""
import stat
assert os.environ["PRIVATE"] == {PRIVATE!r}
assert os.getcwd() == {str(ROOT)!r}
folder = os.path.dirname(sys.argv[1])
assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
assert all(stat.S_IMODE(os.stat(f"{{folder}}/{{n}}").st_mode) == 0o600 for n in os.listdir(folder))
assert open(spec["placement_file"]).read() == "{{}}"
print('hello'); step(0); step(1); finish()
"""
    before = folders(login)
    stage = Stage(login, tmp_path, source)
    events = await stage.run()
    for rank in (0, 1):
        own = [event for event in events if event.rank == rank]
        assert [event.event for event in own] == ["step", "step", "finished"]
    assert await gone(stage) and folders(login) == before


async def test_no_list_of_processes_shows_the_environment(login: Login, tmp_path: Path) -> None:
    stage = Stage(login, tmp_path, "step(0); time.sleep(60)")
    work = asyncio.create_task(stage.run())
    while len(stage.seen) < 2:
        await asyncio.sleep(0.02)
    lines = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout
    assert str(stage.file) in lines and PRIVATE not in lines
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await gone(stage)


async def test_an_interrupt_ends_every_rank_and_what_it_started(
    login: Login, tmp_path: Path
) -> None:
    source = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[0]])
step(0); time.sleep(60)
"""
    before = folders(login)
    stage = Stage(login, tmp_path, source)
    work = asyncio.create_task(stage.run())
    while len(stage.seen) < 2:
        await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await gone(stage), "though they ignore SIGTERM"
    while folders(login) != before:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("profiles", [False, True])
async def test_an_interrupt_while_one_is_started_leaves_nothing(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profiles: bool
) -> None:
    """profiles: what measures there is started, and no rank. Interrupted twice, as by an impatient
    person."""
    before, begun, goes_on = folders(login), threading.Event(), threading.Event()
    usual = SshServer._put

    def put_later(server: SshServer, path: str, content: bytes) -> None:
        begun.set()
        goes_on.wait(20)
        usual(server, path, content)

    monkeypatch.setattr(SshServer, "_put", put_later)
    stage = Stage(login, tmp_path, "time.sleep(60)")
    if profiles:
        words = ["-c", "import time; time.sleep(60)", str(stage.file)]
        work: asyncio.Task[object] = asyncio.create_task(
            stage.launcher.run("s1", words, on_line=print)
        )
    else:
        work = asyncio.create_task(stage.run())
    await asyncio.to_thread(begun.wait, 20)
    for _ in range(2):
        work.cancel()
        await asyncio.sleep(0.1)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await gone(stage) and folders(login) == before


async def test_a_rank_that_prints_fast_waits_for_its_reader(login: Login, tmp_path: Path) -> None:
    """Nobody reads what it prints until it has stood still for a while; then all of it comes."""
    source = f"""
for part in range(64):
    sys.stdout.write("x" * (2**20 - 1) + chr(10)); sys.stdout.flush()
    open({str(tmp_path / "printed")!r}, "w").write(str(part + 1))
finish()
"""
    stage = Stage(login, tmp_path, source)
    program = await stage.launcher.start(stage.specs(1)[0])
    lines = program.output()
    assert len(await anext(lines)) == 2**20
    # The loop goes on, and takes nothing for the program's output beyond what it may hold.
    for _ in range(100):
        await asyncio.sleep(0.02)
    assert int((tmp_path / "printed").read_text() or "0") < 20
    assert len([line async for line in lines]) == 63 + 1
    assert await program.wait() == 0


async def test_an_interrupt_is_heard_beside_a_rank_that_prints_without_end(
    login: Login, tmp_path: Path
) -> None:
    stage = Stage(login, tmp_path, "step(0)\nwhile True: sys.stdout.write('x' * 20 + chr(10))")
    work = asyncio.create_task(stage.run())
    while len(stage.seen) < 2:
        await asyncio.sleep(0.02)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await gone(stage)


async def test_a_killed_rank_is_named(login: Login, tmp_path: Path) -> None:
    source = """
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
    stage = Stage(login, tmp_path, source)
    with pytest.raises(JobFailed) as failure:
        await stage.run()
    assert failure.value.where == "s2" and "rank 1 was killed by SIGKILL" in failure.value.what
    assert await gone(stage)


async def test_a_failure_says_why(login: Login, tmp_path: Path) -> None:
    stage = Stage(login, tmp_path, 'print("far down", file=sys.stderr); sys.exit(3)')
    with pytest.raises(JobFailed, match=r"(?s)rank \d ended with 3.*far down"):
        await stage.run()


CONTROLLER = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.launch.ssh_connecting import Login
from tests.controller.launch.ssh_stage import Stage
login = Login({user!r}, {port}, Path({key!r}), Path({known!r}))
stage = Stage(login, Path({folder!r}), {source!r})
say = lambda event: print(event.rank, flush=True)
asyncio.run(run_ranks(stage.launcher, stage.specs(2), say, held_seconds=lambda: {held}))
"""


def kill_a_controller(login: Login, folder: Path, held_seconds: float) -> Stage:
    script = CONTROLLER.format(
        path=sys.path, user=login.user, port=login.port,
        key=str(login.key), known=str(login.known_hosts),
        folder=str(folder), source=GOES_ON, held=held_seconds,
    )  # fmt: skip
    kill_once_two_ranks_are_heard(script)
    return Stage(login, folder, GOES_ON)


async def test_ranks_outlive_the_controller_until_their_time_is_over(
    login: Login, tmp_path: Path
) -> None:
    before = folders(login)
    # The controller repeats its promise every two seconds, so that some seconds of it are left.
    stage = kill_a_controller(login, tmp_path, held_seconds=10)
    killed = time.monotonic()
    assert len([line for line in stage.left() if " -c " not in line]) == 2
    assert await gone(stage) and time.monotonic() > killed + 1.5
    while folders(login) != before:
        assert time.monotonic() < killed + 90
        await asyncio.sleep(0.05)


async def test_what_is_left_is_found_and_ended(login: Login) -> None:
    """Another launcher than the one that started the ranks finds them."""
    other = launcher_of(login, "-m", "http.server", environment={})
    program = await other._begin(
        other._servers["s1"],
        lambda folder: (["-m", "http.server", "--directory", folder, "0"], {}),
        0,
        other._around,
    )
    later = launcher_of(login, "-m", "http.server")
    until = time.monotonic() + 60
    while len(left := later.left()) < 2:
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    # Both servers of this test are this machine.
    assert {rank.server for rank in other.left()} == {"s2"}, "its own are not left"
    assert {(rank.server, rank.pid) for rank in left} == {(s, left[0].pid) for s in ("s1", "s2")}
    assert later.busy("s1") and 0 <= left[0].seconds < 90
    await asyncio.to_thread(later.end_left, left)
    assert later.left() == () and await program.wait() == -signal.SIGTERM


@pytest.mark.parametrize("isolated", [[], ["-I"]])
def test_what_somebody_types_is_told_and_left_alone(login: Login, isolated: list[str]) -> None:
    later = launcher_of(login, "-m", "http.server")
    command = [sys.executable, *isolated, "-m", "http.server", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as typed:
        try:
            assert typed.pid in {rank.pid for rank in later.busy("s1")}
            assert later.left() == ()
        finally:
            typed.terminate()


async def test_what_does_not_want_to_end_leaves_nothing_either(
    login: Login, tmp_path: Path
) -> None:
    """The folder must go too: it has the job's environment in it."""
    before = folders(login)
    source = "signal.signal(signal.SIGTERM, signal.SIG_IGN); step(0); time.sleep(60)"
    stage = Stage(login, tmp_path, source)
    program = await stage.launcher.start(stage.specs(1)[0])
    assert await anext(program.output())
    assert len(folders(login) - before) == 1
    later = launcher_of(login, str(stage.file))
    await asyncio.to_thread(later.end_left, later.left())
    assert await gone(stage) and folders(login) == before


async def test_a_lost_connection_is_said_and_its_rank_ended(login: Login, tmp_path: Path) -> None:
    stage = Stage(login, tmp_path, "step(0); time.sleep(60)")
    work = asyncio.create_task(stage.run(count=1))
    while not (stage.seen or work.done()):
        await asyncio.sleep(0.02)
    assert stage.seen, await work
    (leader,) = (leader for _, leader in stage.launcher._leaders)
    waiting = parent_of(leader)  # setsid, which waits for the leader
    os.kill(parent_of(waiting), signal.SIGKILL)  # the sshd of this connection
    with pytest.raises(JobFailed, match="the SSH connection to s1 was lost"):
        await work
    assert await gone(stage)


@pytest.mark.parametrize("how", ["interrupted", "left", "lost"])
async def test_a_script_saves_however_it_is_ended(login: Login, tmp_path: Path, how: str) -> None:
    """Its launcher ends it; or another one, which finds it; or the launcher that lost it."""
    script, saved, before = tmp_path / "train.py", tmp_path / "saved", folders(login)
    script.write_text(f"{SAVES}\nopen({str(saved)!r}, 'w').write(str(len(asked)))\n")
    # Another kind of runs than that of ranks, which others may have on this machine.
    program, environment = ("-B", *RANK_PROGRAM), {"PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = launcher_of(login, *program, environment=environment)
    printed, trains = list[str](), asyncio.Event()

    def on_line(rank: int, text: str, is_error: bool) -> None:
        printed.append(text)
        if "trains" in text:
            trains.set()

    specs = script_specs(script=str(script))
    work = asyncio.create_task(run_ranks(launcher, specs, lambda event: None, on_line=on_line))
    done, _ = await asyncio.wait(
        [work, asyncio.create_task(trains.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    assert work not in done, work.exception()
    if how == "interrupted":
        work.cancel()
    elif how == "left":
        other = launcher_of(login, *program)
        (left, _) = other.left()  # Both servers of this test are this machine.
        await asyncio.to_thread(other.end_left, [left])
    else:
        ((_, leader),) = launcher._leaders
        os.kill(parent_of(parent_of(leader)), signal.SIGKILL)  # the sshd of this connection
    with pytest.raises(asyncio.CancelledError if how == "interrupted" else JobFailed):
        await work
    assert saved.read_text() == "1" and folders(login) == before
    assert how == "lost" or printed[-1] == "[0] saved, asked 1 times"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_what_cannot_be_looked_at_is_said_in_the_status(keys: Keys, tmp_path: Path) -> None:
    nobody = Login(port=free_port(), key=keys.user, known_hosts=keys.known_hosts)
    with pytest.raises(LaunchFailed) as raised:
        await left_ranks(launcher_of(nobody))
    with Journal.open(tmp_path) as journal:
        status = await job_status(plan(), raised.value, journal)
    assert status.ranks == () and "SSH cannot be reached" in status.problems[0]


async def test_a_program_runs_to_its_end(login: Login) -> None:
    source = (
        "import sys; data = sys.stdin.buffer.read(); print('a line', file=sys.stderr); "
        "sys.stdout.buffer.write(data[::-1]); sys.exit(5)"
    )
    lines: list[str] = []
    given = os.urandom(300_000)
    ended = await launcher_of(login).run("s2", ["-c", source], given=given, on_line=lines.append)
    assert (ended.status, ended.output, ended.tail) == (5, given[::-1], ("a line",))
    assert lines == ["a line"]


async def test_the_text_of_a_program_is_run_by_the_server_s_own_python(login: Login) -> None:
    before = folders(login)
    source = b"import sys; print(sys.flags.isolated, 'PRIVATE' in __import__('os').environ)"
    ended = await launcher_of(login).read("s2", source)
    assert (ended.status, ended.output, ended.tail) == (0, b"1 False\n", ())
    failed = await launcher_of(login).read("s1", b"raise SystemExit('it cannot be read')")
    assert failed.status == 1 and failed.tail == ("it cannot be read",)
    assert folders(login) == before, "nothing is put there"
