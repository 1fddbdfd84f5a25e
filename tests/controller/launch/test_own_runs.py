"""Whatever a launcher ends or removes on a server, it made and marked. The server's shell is this
machine's; over a real sshd: test_ssh.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.own_runs import (
    IS_ROOT,
    MARK_FILE,
    Run,
    ending,
    finding,
    found,
    making,
    removing,
)
from placewire.controller.launch.programs import described
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import (
    SshServer,
    Started,
    Surroundings,
    program_script,
)
from placewire.controller.launch.ssh_program import SshProgram
from tests.controller.launch.rank_programs import runs

PLAN = "small"
GOES_ON = """
import signal, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("runs", flush=True)
time.sleep(600)
"""


class HereServer(SshServer):
    """A server whose shell is this machine's, with a folder for temporary files of its own."""

    def __init__(self, temporary: Path, user: str | None = None) -> None:
        super().__init__("s1", "127.0.0.1", Login(user))
        self.temporary = temporary
        # In the folder where programs begin: what a shell would put for the `?` that ps prints.
        (temporary / "x").touch()
        self.environment = {**os.environ, "TMPDIR": str(temporary)}
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, script: str, given: bytes = b"", seconds: float = 60.0) -> tuple[int, str, str]:
        done = subprocess.run(
            ["/bin/sh", "-c", script], input=given, capture_output=True, env=self.environment,
            cwd=self.temporary,
        )  # fmt: skip
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode()

    def begin(self, program: Path, run: Run, python: Path, *words: str) -> str:
        """Starts a program as `start` does. Returns its folder."""
        _, printed, _ = self.run(making(run, "a test", root_too=True))
        folder = printed.removesuffix("\n")
        content = described([str(program), f"{folder}/spec.json", *words], {})
        (Path(folder) / "program.json").write_bytes(content)
        around = Surroundings(str(python), str(self.temporary), {})
        self.started.append(
            subprocess.Popen(
                ["/bin/sh", "-c", program_script(around, run, folder)],
                env=self.environment,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        )
        stdout = self.started[-1].stdout
        assert stdout is not None and int(stdout.readline()) and stdout.readline() == b"runs\n"
        return folder

    def close(self) -> None:
        for one in found(self.run(finding())[1]):
            if one.folder.startswith(str(self.temporary)):
                os.killpg(one.session, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HereServer]:
    # A name that looks like ours, in which the user keeps what is dear to them.
    temporary = tmp_path / "placewire-venv" / "tmp"
    temporary.mkdir(parents=True)
    (tmp_path / "placewire-venv" / "python").symlink_to(sys.executable)
    made = HereServer(temporary)
    yield made
    made.close()


def launcher_on(server: HereServer, program: Path) -> SshLauncher:
    around = Surroundings("python", None, {})
    launcher = SshLauncher({}, Login(), around, plan=PLAN, program=[str(program)])
    launcher._servers = {server.name: server}
    return launcher


def written(folder: Path) -> Path:
    program = folder / "stand_in.py"
    program.write_text(GOES_ON)
    return program


@pytest.mark.parametrize("manner", ["gentle", "stubborn"])
def test_only_a_marked_folder_is_removed_with_its_run(
    server: HereServer, tmp_path: Path, manner: str
) -> None:
    """The interpreter stands in a folder whose name looks like a run's."""
    program, venv = written(tmp_path), tmp_path / "placewire-venv"
    launcher = launcher_on(server, program)
    folder = Path(server.begin(program, Run(launcher._kind, plan=PLAN), venv / "python", manner))
    other = Path(server.begin(program, Run("other"), venv / "python", manner))
    (left,) = launcher._left_on(server)
    assert left.folder == str(folder)
    assert 0 <= left.seconds < 60 and left.pid != left.session
    # By then another of its processes may be the one that is named.
    launcher.end_left([RunningProgram("s1", 1, left.seconds, left.run.identifier)])
    assert not folder.exists()
    assert (venv / "python").exists() and other.exists(), "and a run that is no rank is not touched"
    assert server.started[0].wait(60) is not None and server.started[1].poll() is None


def test_a_folder_that_was_not_made_for_the_run_stays(server: HereServer, tmp_path: Path) -> None:
    run = Run("rank")

    def stays(folder: Path) -> bool:
        server.run(removing(run, str(folder)))
        return folder.exists()

    made = Path(server.run(making(run, "a test", root_too=True))[1].strip())
    copied, unmarked, linked = (tmp_path / f"placewire-{k}" for k in ("copied", "bare", "linked"))
    subprocess.run(["cp", "-a", str(made), str(copied)], check=True)
    unmarked.mkdir()
    linked.symlink_to(made)
    (tmp_path / "file").write_text("x")
    assert all(stays(folder) for folder in (copied, unmarked, linked, tmp_path / "file", tmp_path))
    mark = (made / MARK_FILE).read_text()
    (made / MARK_FILE).unlink()
    assert stays(made)
    (made / MARK_FILE).symlink_to(copied / MARK_FILE)
    assert stays(made)
    (made / MARK_FILE).unlink()
    (made / MARK_FILE).write_text(mark)
    server.run(removing(Run("rank"), str(made)))
    assert made.exists(), "another run's"
    assert not stays(made)


def test_who_copies_a_rank_s_environment_is_left_alone(server: HereServer, tmp_path: Path) -> None:
    """As for debugging: in a shell, and in a session of its own."""
    program = written(tmp_path)
    folder = server.begin(program, Run("rank"), Path(sys.executable), "gentle")
    (left,) = (one for one in found(server.run(finding())[1]) if one.folder == folder)
    text = Path(f"/proc/{left.pid}/environ").read_bytes().split(b"\0")
    environment = dict(one.split(b"=", 1) for one in text if b"=" in one)
    assert environment[b"PLACEWIRE_RUN"].endswith(folder.encode())
    command = ["/bin/sh", "-c", "echo; sleep 600; true"]
    with (
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as shell,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, start_new_session=True
        ) as alone,
    ):
        try:
            assert shell.stdout and shell.stdout.readline()
            assert alone.stdout and alone.stdout.readline()
            runs = [one for one in found(server.run(finding())[1]) if one.folder == folder]
            assert [one.session for one in runs] == [left.session]
            server.run(ending(runs))
            assert server.started[0].wait(60) is not None
            assert shell.poll() is None and alone.poll() is None
        finally:
            shell.kill()
            os.killpg(alone.pid, signal.SIGKILL)


def test_a_rank_whose_leader_was_killed_is_found_and_ended(
    server: HereServer, tmp_path: Path
) -> None:
    program = written(tmp_path)
    folder = server.begin(program, Run("rank"), Path(sys.executable), "stubborn")
    (left,) = (one for one in found(server.run(finding())[1]) if one.folder == folder)
    os.kill(left.session, signal.SIGKILL)
    server.started[0].wait(60)
    (again,) = (one for one in found(server.run(finding())[1]) if one.folder == folder)
    assert again.pid == left.pid and Path(folder).exists()
    status, said, complaint = server.run(ending([again]))
    assert (status, said.split()) == (0, []), complaint
    assert not Path(folder).exists()
    assert folder not in {one.folder for one in found(server.run(finding())[1])}


LEAVES_A_DAEMON = """
import os, sys, time
mark = sys.argv[0] + ".daemon"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while os.getppid() != 1: time.sleep(0.01)
        open(mark + ".part", "w").write(str(os.getpid()))
        os.rename(mark + ".part", mark)
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
while not os.path.exists(mark): time.sleep(0.02)
print("runs", flush=True)
if "stays" in sys.argv: time.sleep(600)
"""


@pytest.mark.parametrize("manner", ["ends", "stays"])
def test_a_daemon_that_a_run_left_behind_is_ended_with_it(
    server: HereServer, tmp_path: Path, manner: str
) -> None:
    program = tmp_path / "leaves_a_daemon.py"
    program.write_text(LEAVES_A_DAEMON)
    other = Path(server.begin(written(tmp_path), Run("rank"), Path(sys.executable), "gentle"))
    folder = server.begin(program, Run("rank"), Path(sys.executable), manner)
    daemon = int(Path(f"{program}.daemon").read_text())
    if manner == "stays":
        (left,) = (one for one in found(server.run(finding())[1]) if one.folder == folder)
        server.run(ending([left]))
    assert server.started[1].wait(60) is not None
    deadline = time.monotonic() + 60
    while runs(daemon):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert server.started[0].poll() is None and other.exists(), "of another run nothing is touched"


def test_a_session_that_is_somebody_else_s_by_now_is_not_signalled(server: HereServer) -> None:
    """A run that has ended since it was found, and whose session's number is used again."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        try:
            run = Run("rank")
            text = f"{other.pid} 1 {other.pid} 3 S\n--\n/proc/{other.pid}/environ:PLACEWIRE_RUN="
            (one,) = found(f"{text}{run.identifier}:rank:0:/tmp/placewire-x\0")
            assert server.run(ending([one]))[1].split() == []
            time.sleep(0.2)
            assert other.poll() is None
        finally:
            other.kill()


def test_a_program_s_number_that_is_another_s_by_now_is_not_signalled(
    server: HereServer, tmp_path: Path
) -> None:
    """As where the server started anew and the controller, which lost it, kills what it began."""
    run, script = Run("rank", plan=PLAN), tmp_path / "rank.py"
    script.write_text(GOES_ON)
    folder = server.begin(script, run, server.temporary.parent / "python", "stubborn")
    (own,) = (one for one in found(server.run(finding())[1]) if one.run == run)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as others:
        began = Started(cast(Any, None), cast(Any, None), others.pid, run, folder)
        server.terminate(began)
        server.kill(began)
        time.sleep(0.2)
        assert others.poll() is None
        others.kill()
    server.kill(replace(began, leader=own.session))
    server.started[-1].wait(timeout=60)  # It is its own number, and ends.


@pytest.mark.parametrize(("status", "lost"), [(255, False), (-1, True)])
async def test_a_program_that_ends_as_ssh_does_is_no_lost_connection(
    status: int, lost: bool, tmp_path: Path
) -> None:
    """`sys.exit(-1)` is 255. paramiko has -1 where no status came."""
    channel, server = MagicMock(), MagicMock()
    server.name = "s1"
    channel.recv.return_value = channel.recv_stderr.return_value = b""
    channel.recv_exit_status.return_value = status
    program = SshProgram(0, server, Started(MagicMock(), channel, 7, Run("rank"), str(tmp_path)))
    lines = [line async for line in program.output()]
    assert await program.wait() == 255
    assert lines == ([b"the SSH connection to s1 was lost\n"] if lost else [])
    assert server.kill.called == lost


@pytest.mark.parametrize(
    "value",
    [
        "", "x", "a:rank:7:/tmp/x", f"{'0' * 32}:rank:7:relative", f"{'0' * 32}:rank:7:/a\nb",
        f"{'0' * 32}:rank:8:/tmp/x", f"{'0' * 32}:rank:-7:/tmp/x", f"{'0' * 32}:two words:7:/tmp/x",
        f"{'G' * 32}:rank:7:/tmp/x",
    ],
)  # fmt: skip
def test_a_variable_that_we_did_not_set_says_nothing(value: str) -> None:
    listed = "7 1 7 5 Ss\n9 7 7 5 S\n--\n"
    assert found(f"{listed}/proc/9/environ:PLACEWIRE_RUN={value}\0") == []
    ours = f"/proc/9/environ:PLACEWIRE_RUN={'0' * 32}:rank:7:/tmp/x\0"
    assert [one.pid for one in found(listed + ours)] == [9]


def test_root_without_a_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "id").write_text("#!/bin/sh\necho 0\n")
    (folder / "id").chmod(0o755)
    unnamed, named = HereServer(tmp_path), HereServer(tmp_path, "root")
    for server in (unnamed, named):
        server.environment["PATH"] = f"{folder}:{server.environment['PATH']}"
    assert unnamed.run(making(Run("rank"), "a test", root_too=False))[0] == IS_ROOT
    with pytest.raises(LaunchFailed, match=r"(?s)as root.*launch\.user"):
        unnamed._folder(Run("rank"))
    made = Path(named._folder(Run("rank")))
    assert made.is_dir() and "made by user" in (made / MARK_FILE).read_text()


def test_an_odd_folder_for_temporary_files_is_refused(tmp_path: Path) -> None:
    server = HereServer(tmp_path, "root")
    odd = tmp_path / "two\nlines"
    odd.mkdir()
    server.environment["TMPDIR"] = str(odd)
    with pytest.raises(LaunchFailed, match="TMPDIR"):
        server._folder(Run("rank"))


def test_a_run_is_its_plan_s_alone(server: HereServer, tmp_path: Path) -> None:
    """Several plans share a server: each launcher ends its own plan's ranks, even where it is told
    to end others, and says whose the others are."""
    program = written(tmp_path)
    launcher = launcher_on(server, program)
    for plan in (PLAN, "other", ""):
        server.begin(program, Run(launcher._kind, plan=plan), Path(sys.executable), "gentle")
    left = launcher.left()
    assert sorted(rank.plan for rank in left) == ["", "other", PLAN]
    launcher.end_left(left)
    assert sorted(rank.plan for rank in launcher.left()) == ["", "other"]
    assert server.started[0].wait(60) is not None
    assert server.started[1].poll() is None and server.started[2].poll() is None


def test_a_server_that_cannot_be_looked_at_hides_no_other(
    server: HereServer, tmp_path: Path
) -> None:
    class Gone(SshServer):
        def run(
            self, script: str, given: bytes = b"", seconds: float = 0.0
        ) -> tuple[int, str, str]:
            raise LaunchFailed("SSH cannot be reached", where=self.name, remedy="look at its sshd")

    program = written(tmp_path)
    launcher = launcher_on(server, program)
    launcher._servers |= {name: Gone(name, "127.0.0.1", Login()) for name in ("s2", "s3")}
    server.begin(program, Run(launcher._kind, plan=PLAN), Path(sys.executable), "gentle")
    with pytest.raises(LaunchFailed, match="s2: SSH cannot be reached") as caught:
        launcher.left()
    assert caught.value.where == "s2, s3"
    assert [(rank.server, rank.plan) for rank in caught.value.found] == [("s1", PLAN)]
