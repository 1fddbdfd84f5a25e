"""A break of the network between the controller and a server, over a real sshd on this machine."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from placewire.controller.errors import JobFailed
from placewire.controller.launch import ssh, ssh_connecting
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login, socket_of
from placewire.controller.launch.ssh_connection import SshServer
from placewire.controller.launch.ssh_program import SshProgram
from placewire.job.contract.specification import ProgramSpec
from tests.controller.launch.ssh_stage import ADDRESS, Stage, around

pytestmark = pytest.mark.network

# Of socket(7); Python's socket module has no names for them.
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
SHORT_SECONDS = 1.0
BREAK_SECONDS = 4.0


@contextmanager
def nothing_arrives(at: socket.socket) -> Iterator[None]:
    """Meanwhile the kernel drops what comes for this socket, acknowledgements included."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    at.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    try:
        yield
    finally:
        with suppress(OSError):  # It was closed meanwhile.
            at.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


class Kept:
    """Keeps what it started."""

    def __init__(self, launcher: SshLauncher) -> None:
        self._launcher = launcher
        self.programs: list[SshProgram] = []

    async def start(self, spec: ProgramSpec) -> SshProgram:
        self.programs.append(await self._launcher.start(spec))
        return self.programs[-1]


@pytest.mark.parametrize("lease_seconds", [0.0, 60.0])
async def test_a_job_outlives_a_break_that_its_lease_outlives(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease_seconds: float
) -> None:
    monkeypatch.setattr(ssh, "LOST_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(ssh_connecting, "_KEEPALIVE_SECONDS", 1)
    source = "for k in range(90): step(k); time.sleep(0.1)\nfinish()"
    stage = Stage(login, tmp_path, source)
    kept = Kept(
        SshLauncher(
            {"s1": ADDRESS}, login, around(), plan="small", program=(str(stage.file),),
            lease_seconds=lease_seconds,
        )
    )  # fmt: skip
    work = asyncio.create_task(
        run_ranks(kept, stage.specs(1), stage.seen.append, held_seconds=lambda: 60.0)
    )
    while not (stage.seen or work.done()):
        await asyncio.sleep(0.02)
    with nothing_arrives(socket_of(kept.programs[0]._started.client)):
        await asyncio.sleep(BREAK_SECONDS)
        seen = len(stage.seen)
    if not lease_seconds:
        with pytest.raises(JobFailed, match="the SSH connection to s1 was lost"):
            await work
        return
    await work
    assert [event.event for event in stage.seen] == [*["step"] * 90, "finished"]
    assert seen < 90, "the break was within the job"


def test_a_question_is_given_up_sooner_than_a_job(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one is asked over a new connection."""
    monkeypatch.setattr(ssh_connecting.connected, "__defaults__", (SHORT_SECONDS,))
    monkeypatch.setattr(SshServer._connected, "__defaults__", (SHORT_SECONDS,))
    monkeypatch.setattr(ssh_connecting, "_KEEPALIVE_SECONDS", 1)
    server = SshServer("s1", ADDRESS, login)
    assert server.run("echo hello")[1] == "hello\n"
    client = server._client
    assert client is not None
    transport = client.get_transport()
    assert transport is not None
    with nothing_arrives(socket_of(client)):
        transport.join(30)
        assert not transport.is_active(), "though nothing was asked"
    assert server.run("echo again")[:2] == (0, "again\n")
