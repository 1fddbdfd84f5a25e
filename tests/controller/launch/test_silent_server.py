"""A server that accepts a connection and then is silent: a question to it has an end, and holds up
neither an interrupt nor the end of the controller."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import placewire.controller.launch.ssh_connecting as connecting
import placewire.controller.launch.ssh_connection as connection
from placewire.controller.abandonable import abandonable
from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer
from placewire.controller.launch.ssh_patience import Patience
from tests.controller.launch.ssh_stage import ADDRESS, around, launcher_of
from tests.controller.launch.sshd import Keys, running_sshd
from tests.free_port import free_port

pytestmark = pytest.mark.network

HANGS = {"ForceCommand": "sleep 600"}  # As a ~/.bashrc that never comes to its end.


@contextmanager
def served(keys: Keys, options: dict[str, str]) -> Iterator[Login]:
    port = free_port()
    keys.know(ADDRESS, port)
    with running_sshd(keys, ADDRESS, port, options=options):
        yield Login(getpass.getuser(), port, keys.user, keys.known_hosts)


@pytest.mark.parametrize(
    "options",
    [HANGS, {"ForceCommand": "while echo hello; do sleep 0.1; done"}],
)
def test_a_shell_that_never_comes_to_the_command_is_named(
    keys: Keys, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a question would wait, this server never comes to it.
    monkeypatch.setattr(connection, "Patience", lambda seconds: Patience(min(seconds, 3.0)))
    with served(keys, options) as login:
        with pytest.raises(
            LaunchFailed, match=r"(?s)s1.*: SSH gave no answer within \d+ s.*\.bashrc"
        ):
            launcher_of(login).left()
        with pytest.raises(LaunchFailed, match=r"(?s)s[12].*: SSH gave no answer"):
            launcher_of(login).require_ready()


def test_a_command_that_prints_without_end_fills_no_memory(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_BYTES", 2**20)
    with served(keys, {}) as login:
        server = SshServer("s1", ADDRESS, login)
        with pytest.raises(LaunchFailed, match=r"s1: .*the server printed more than 1 MiB"):
            server.run("exec yes")
        assert server.run("echo again")[1] == "again\n"


def test_an_sshd_that_is_frozen_after_it_let_us_in_is_named(keys: Keys) -> None:
    with served(keys, {}) as login:
        server = SshServer("s1", ADDRESS, login)
        assert server.run("echo $PPID")[0] == 0
        _, said, _ = server.run("cat /proc/$PPID/stat")
        sessions = _parents(int(said.split()[0]))
        for pid in sessions:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(LaunchFailed, match="s1: SSH gave no answer within 2 s"):
                server.run("true", seconds=2.0)
        finally:
            for pid in sessions:
                os.kill(pid, signal.SIGCONT)
        assert server.run("echo again")[:2] == (0, "again\n"), "over a new connection"


def _parents(pid: int) -> list[int]:
    """The processes of one connection: from this one up to the listener, which is none of them."""
    found = []
    while "sshd" in (
        name := Path(f"/proc/{pid}/cmdline").read_text()
    ) and " -D" not in name.replace("\0", " "):
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert found
    return found


def test_a_program_that_hangs_is_ended(keys: Keys) -> None:
    with served(keys, {}) as login:
        server = SshServer("s1", ADDRESS, login)
        words = ["-c", "import time; time.sleep(600)"]
        with pytest.raises(LaunchFailed, match="s1: its Python gave no answer within 2 s"):
            server.run_program(around(), lambda folder: (words, {}), seconds=2.0)


def test_a_listener_that_says_nothing_is_named(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_CONNECT_SECONDS", 1.0)
    with socket.create_server((ADDRESS, 0)) as silent:
        login = Login(getpass.getuser(), silent.getsockname()[1], keys.user, keys.known_hosts)
        with pytest.raises(LaunchFailed, match=r"s1 \(127.*: SSH gave no answer within 1 s"):
            SshServer("s1", ADDRESS, login).run("true")


ASKS = """
import asyncio, sys
sys.path[:0] = {path!r}
from pathlib import Path
from placewire.controller.abandonable import abandonable
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.launch.ssh_connecting import Login
from tests.controller.launch.ssh_stage import launcher_of
launcher = launcher_of(Login({user!r}, {port}, Path({key!r}), Path({known!r})))
async def ask():
    asking = asyncio.create_task(abandonable(launcher.{question}))
    await asyncio.sleep(0)
    print("asked", flush=True)
    await asking
interruptible(ask())
"""


@pytest.mark.parametrize("question", ["left", "require_ready"])
def test_an_interrupt_ends_the_process_at_once(keys: Keys, question: str) -> None:
    with served(keys, HANGS) as login:
        source = ASKS.format(
            path=sys.path, user=login.user, port=login.port, key=str(login.key),
            known=str(login.known_hosts), question=question,
        )  # fmt: skip
        with subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout and process.stdout.readline() == b"asked\n"
            process.send_signal(signal.SIGINT)
            # The question's own limit is a minute.
            assert process.wait(45) != 0


async def test_a_cancelled_wait_leaves_the_call_to_itself() -> None:
    told, goes_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def call() -> None:
        loop.call_soon_threadsafe(told.set)
        asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result()

    waiting = asyncio.create_task(abandonable(call))
    await told.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    with pytest.raises(ZeroDivisionError):
        await abandonable(lambda: 1 // 0)
    assert await abandonable(lambda: 7) == 7


def test_what_comes_after_the_end_of_patience_is_closed_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Patience(0.0) as patience:
        patience._timer.join()
        assert patience.is_over
        patience.covers(ours)
        assert theirs.recv(1) == b""
