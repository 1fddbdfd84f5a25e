"""What a user's shell prints before a command, as from ~/.bashrc, is no part of what it says. The
connection is a pipe to a shell of this machine; over a real sshd: test_ssh.py."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import IO, Any, cast

import pytest

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.own_runs import Run, found
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer, Surroundings

GREETING = "echo 'Last backup: two days ago'; echo '7 words are no row of ps'; printf 'no end'"


class Channel:
    """The part of paramiko.Channel that is used. before: what the user's shell does first."""

    def __init__(self, before: str) -> None:
        self._before = before

    def exec_command(self, command: str) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f"{self._before}; {command}"], bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _pipe(self, name: str) -> IO[bytes]:
        return cast("IO[bytes]", getattr(self._process, name))

    def settimeout(self, seconds: float) -> None: ...

    def sendall(self, given: bytes) -> None:
        self._pipe("stdin").write(given)

    def shutdown_write(self) -> None:
        self._pipe("stdin").close()

    def recv(self, count: int) -> bytes:
        return self._pipe("stdout").read(count)

    def makefile(self, mode: str) -> IO[bytes]:
        return self._pipe("stdout")

    def makefile_stderr(self, mode: str) -> IO[bytes]:
        return self._pipe("stderr")

    def recv_exit_status(self) -> int:
        return self._process.wait()

    def close(self) -> None:
        for name in ("stdin", "stdout", "stderr"):
            self._pipe(name).close()
        self._process.wait()


class Transport:
    sock = None

    def __init__(self, before: str) -> None:
        self._before = before

    def open_session(self, timeout: float) -> Channel:
        return Channel(self._before)

    def is_active(self) -> bool:
        return True


class Client:
    def __init__(self, before: str) -> None:
        self._before = before

    def get_transport(self) -> Transport:
        return Transport(self._before)


def server(before: str = GREETING) -> SshServer:
    made = SshServer("s1", "192.0.2.1", Login())
    made._client = cast(Any, Client(before))
    return made


def launcher(on: SshServer) -> SshLauncher:
    made = SshLauncher({}, Login(), Surroundings("python", None, {}), plan="small")
    made._servers = {on.name: on}
    return made


def test_a_greeting_is_no_part_of_what_a_command_says() -> None:
    assert server().run("cat; exit 3", b"given") == (3, "given", "")


def test_no_rank_is_found_in_a_greeting() -> None:
    assert launcher(server()).left() == ()
    assert launcher(server()).busy("s1") == ()


def test_no_word_of_a_greeting_is_a_pid_that_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        try:
            text = f"{other.pid} 1 {other.pid} 3 S\n--\n/proc/{other.pid}/environ:PLACEWIRE_RUN="
            (one,) = found(f"{text}{Run('rank').identifier}:rank:0:small:/tmp/placewire-x\0")
            over_ssh = launcher(server())
            monkeypatch.setattr(over_ssh, "_left_on", lambda on: [one])
            over_ssh.end_left([RunningProgram("s1", one.pid, 1.0, one.run.identifier)])
        finally:
            other.kill()


def test_a_row_that_is_none_of_ps_is_skipped() -> None:
    listed = "Last backup: two days ago\n7 1 7 5 Ss\n9 7 7 5 S\n--\n"
    (one,) = found(f"{listed}/proc/9/environ:PLACEWIRE_RUN={'0' * 32}:rank:7:/tmp/x\0")
    assert one.pid == 9


@pytest.mark.parametrize("before", ["echo no account; exit 1", "yes | head -c 200000"])
def test_a_shell_that_runs_no_command_is_said(before: str) -> None:
    with pytest.raises(LaunchFailed, match=r"s1: the user's shell there runs no command.*(no|y)"):
        server(before).run("true")


def test_a_list_that_is_cut_off_is_no_list_without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is lost while it is read."""
    on = server()
    monkeypatch.setattr(on, "run", lambda script, seconds: (-1, "7 1 7 5", ""))
    with pytest.raises(LaunchFailed, match="s1: its processes cannot be listed"):
        launcher(on).left()


def test_what_an_interpreter_prints_at_its_start_is_no_answer(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho hello\n")
    python.chmod(0o755)
    on = server()
    over_ssh = launcher(on)
    over_ssh._around = Surroundings(shlex.quote(str(python)), None, {})

    class Ended:
        def close(self) -> None: ...

    on._connected = lambda *_: cast(Any, type("C", (Client, Ended), {})(GREETING))  # type: ignore[method-assign]
    on._login = Login("root")
    problem = over_ssh._problem(on)
    assert problem is not None and "prints 'hello'" in problem.what
