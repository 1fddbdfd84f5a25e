"""A script that is ended has its time to save, wherever it was started, and is asked once; its
network stays until then. Servers' shells are this machine's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import placewire.controller.launch.ranks as ranks_module
from placewire.controller.errors import JobFailed
from placewire.controller.lab import record as records
from placewire.controller.lab.down import remove
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.processes import describe, runs_a_script
from placewire.controller.lab.record import LabRecord, ProcessRecord
from placewire.controller.launch import own_runs
from placewire.controller.launch.here import HereStarter
from placewire.controller.launch.lab import LabLauncher
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.local import LocalRank, file_in_memory, start_rank
from placewire.controller.launch.own_runs import SPEC_FILE, Run, finding, found
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.launch.ssh_connection import Started
from placewire.controller.launch.ssh_program import SshProgram
from placewire.job.contract.specification import Hold, ProgramSpec
from tests.controller.launch import rank_programs
from tests.controller.launch.rank_programs import SAVES, SAVES_SECONDS, runs, script_specs
from tests.controller.launch.test_own_runs import HereServer, server

__all__ = ["server"]  # a fixture

# These tests run in the idle class, which others on the machine can keep waiting for long.
LONGEST_SECONDS = 300.0


class InMemory:
    """A server's part of a script. fails: it tells so at its begin, and ends with 1 once its other
    processes have ended, which `ends` tells."""

    def __init__(self, rank: int, *, fails: bool = False) -> None:
        self.rank, self.server, self.fails = rank, f"s{rank + 1}", fails
        self.asked, self.killed, self.holds = 0, False, list[float]()
        self.is_asked, self.ends = asyncio.Event(), asyncio.Event()

    async def output(self) -> AsyncIterator[bytes]:
        yield self._event(event="started", pid=7, structure_hash="")
        if self.fails:
            yield self._event(event="failed", what="train.py with RANK 1 ended with 3")
        await self.ends.wait()
        yield b"[0] the last line\n"

    async def errors(self) -> AsyncIterator[bytes]:
        for line in list[bytes]():
            yield line

    async def wait(self) -> int:
        await self.ends.wait()
        return -9 if self.killed else 1

    def tell(self, hold: Hold) -> None:
        self.holds.append(hold.held_seconds)

    def terminate(self) -> None:
        self.asked += 1
        self.is_asked.set()

    def kill(self) -> None:
        self.killed = True
        self.ends.set()

    def close(self) -> None: ...

    def _event(self, **event: object) -> bytes:
        return json.dumps({"rank": self.rank, **event}).encode()


class Starter:
    def __init__(self, *ranks: InMemory) -> None:
        self.ranks = ranks

    async def start(self, spec: ProgramSpec) -> InMemory:
        return self.ranks[spec.rank]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TERMINATE_SECONDS", "_BLAME_SECONDS", "_TELL_SECONDS"):
        monkeypatch.setattr(ranks_module, name, 0.05)


async def asked(one: InMemory) -> None:
    await asyncio.wait_for(one.is_asked.wait(), LONGEST_SECONDS)


async def test_a_script_that_saves_is_not_killed_and_its_network_is_held(quick: None) -> None:
    script, said, printed = InMemory(0), list[str](), list[str]()
    work = asyncio.create_task(
        run_ranks(
            Starter(script), script_specs(), lambda event: None, on_late=said.append,
            held_seconds=lambda: 30.0, on_line=lambda rank, line, error: printed.append(line),
        )
    )  # fmt: skip
    await asyncio.sleep(0.1)
    work.cancel()
    await asked(script)
    script.holds.clear()
    await asyncio.sleep(0.5)  # Ten times as long as a placed rank has here.
    work.cancel()  # Whoever is impatient changes nothing.
    async with asyncio.timeout(LONGEST_SECONDS):
        while len(script.holds) < 4:  # Or its lease would run out under it.
            await asyncio.sleep(0.02)
    assert not script.killed and script.asked == 1
    script.ends.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not script.killed and printed == ["[0] the last line"]
    (told,) = said
    assert told.startswith("rank 0 (s1) has not ended yet: a script has 30 s after SIGTERM")


async def test_a_script_that_does_not_end_in_its_time_is_killed(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "SCRIPT_GONE_SECONDS", 0.5)
    script = InMemory(0)
    work = asyncio.create_task(run_ranks(Starter(script), script_specs(), lambda event: None))
    await asyncio.sleep(0.1)
    work.cancel()
    began = time.monotonic()
    await asyncio.wait([work])
    assert script.killed and script.asked == 1 and time.monotonic() - began >= 0.4


async def test_where_a_script_fails_on_one_server_the_others_are_asked_at_once(quick: None) -> None:
    """Other processes of that server still save: they were asked by what started them."""
    fails, other, gone = InMemory(0, fails=True), InMemory(1), list[int]()
    work = asyncio.create_task(
        run_ranks(
            Starter(fails, other), script_specs(2), lambda event: None, on_gone=gone.append
        )
    )  # fmt: skip
    await asked(other)
    await asyncio.sleep(0.2)
    assert not fails.asked and not fails.killed and not other.killed
    other.ends.set()
    fails.ends.set()
    with pytest.raises(JobFailed) as failure:
        await work
    assert failure.value.what.splitlines() == [
        "rank 0 ended with 1: train.py with RANK 1 ended with 3", "    [0] the last line",
    ]  # fmt: skip
    assert failure.value.where == "s1" and failure.value.remedy == "rank 1 (s2) was ended"
    assert gone == [0]


async def test_a_script_on_this_machine_saves_and_is_heard(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    printed, trains = list[str](), asyncio.Event()

    def on_line(rank: int, text: str, is_error: bool) -> None:
        printed.append(text)
        if "trains" in text:
            trains.set()

    work = asyncio.create_task(
        run_ranks(
            HereStarter(), script_specs(script=str(tmp_path / "train.py")), lambda event: None,
            on_line=on_line, held_seconds=lambda: 60.0,
        )
    )  # fmt: skip
    await asyncio.wait_for(trains.wait(), LONGEST_SECONDS)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert printed[-1] == "[0] saved, asked 1 times"


# Stands in for the program that starts a script: its process has a group of its own.
STARTS = """
import os, signal, subprocess, sys, time
script = subprocess.Popen([sys.executable, sys.argv[0] + ".script"], process_group=0)
def ask(*_):
    time.sleep(1)
    os.killpg(script.pid, signal.SIGTERM)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else ask)
script.wait()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    program = tmp_path / "starts.py"
    program.write_text(STARTS)
    saved = tmp_path / "saved"
    source = SAVES.replace('print("trains", left.pid, flush=True)', f"""
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{left.pid}}")
print("runs", flush=True)
""")  # fmt: skip
    source += f"\nopen({str(saved)!r}, 'w').write(str(len(asked)))\n"
    Path(f"{program}.script").write_text(source)
    yield program
    for pid in pids_of(program):
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


def pids_of(program: Path) -> list[int]:
    return [int(pid) for pid in (program.parent / "pids").read_text().split()]


def left_on(server: HereServer, folder: str) -> own_runs.LeftRun:
    (left,) = (one for one in found(server.run(finding())[1]) if one.folder == folder)
    return left


def begin(server: HereServer, program: Path, spec: str, *words: str) -> Started:
    folder = server.begin(program, Run("rank"), Path(sys.executable), *words)
    (Path(folder) / SPEC_FILE).write_text(spec)
    left = left_on(server, folder)
    return Started(MagicMock(), MagicMock(), left.session, left.run, folder)


def test_a_script_that_is_left_on_a_server_has_its_time(server: HereServer, program: Path) -> None:
    (spec,) = script_specs()
    started = begin(server, program, spec.model_dump_json())
    status, remain, complaint = server.run(own_runs.ending([left_on(server, started.folder)]))
    assert (status, remain.split()) == (0, []), complaint
    assert (program.parent / "saved").read_text() == "1"
    assert not Path(started.folder).exists()


def test_a_placed_rank_that_is_left_on_a_server_has_three_seconds(
    server: HereServer, program: Path
) -> None:
    script = Path(f"{program}.script")
    script.write_text(script.read_text().replace(str(SAVES_SECONDS), "600"))
    (spec,) = rank_programs.specs(1)
    started = begin(server, program, spec.model_dump_json())
    assert server.run(own_runs.ending([left_on(server, started.folder)]))[1].split() == []
    assert not (program.parent / "saved").exists()


def test_who_is_asked_over_ssh_asks_the_script_and_who_is_killed_leaves_nothing(
    server: HereServer, program: Path
) -> None:
    started = begin(server, program, "{}", "stubborn")
    server.terminate(started)
    time.sleep(0.5)
    assert not [pid for pid in pids_of(program) if not runs(pid)], "it was asked past the program"
    server.kill(started)
    await_end(pids_of(program))


def await_end(pids: list[int]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while any(map(runs, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("may_save", [False, True])
async def test_a_script_whose_connection_is_lost_may_save(may_save: bool, tmp_path: Path) -> None:
    channel, server = MagicMock(), MagicMock()
    server.name = "s1"
    channel.recv.return_value = channel.recv_stderr.return_value = b""
    channel.recv_exit_status.return_value = -1
    started = Started(MagicMock(), channel, 7, Run("rank"), str(tmp_path))
    program = SshProgram(0, server, started, may_save=may_save)
    assert await program.wait() == 255
    assert (server.end.called, server.kill.called) == (may_save, not may_save)


@pytest.fixture
async def local(program: Path) -> AsyncIterator[Any]:
    """Starts the program as a rank of this machine, as in a lab."""
    started: list[LocalRank] = []

    async def start(spec: ProgramSpec, *words: str) -> LocalRank:
        rank = await start_rank(
            spec, lambda file: [sys.executable, str(program), *words, file],
            workdir=program.parent, environment=os.environ,
        )  # fmt: skip
        started.append(rank)
        assert await anext(rank.output()) == b"runs\n"
        return rank

    yield start
    for rank in started:
        rank.kill()
        await rank.wait()
        rank.close()


async def test_who_is_killed_on_this_machine_leaves_nothing(local: Any, program: Path) -> None:
    rank = await local(script_specs()[0], "stubborn")
    rank.terminate()
    await asyncio.sleep(0.5)
    assert not [pid for pid in pids_of(program) if not runs(pid)]
    rank.kill()
    assert await rank.wait() == -signal.SIGKILL
    await asyncio.to_thread(await_end, pids_of(program))


async def test_a_script_in_a_lab_is_told_from_a_placed_rank(local: Any, program: Path) -> None:
    script = await local(script_specs()[0])
    placed = await local(rank_programs.specs(1)[0])
    assert runs_a_script(script.pid)
    assert not runs_a_script(placed.pid) and not runs_a_script(os.getpid())
    with file_in_memory("other", b"{}") as other:
        command = [sys.executable, "-c", "import time; time.sleep(600)", f"/dev/fd/{other}"]
        with subprocess.Popen(command, pass_fds=[other]) as process:
            assert not runs_a_script(process.pid)
            process.kill()


def test_nothing_is_read_from_a_pipe_in_the_place_of_a_specification() -> None:
    (spec,) = script_specs()
    told = spec.model_dump_json().encode()
    reads, writes = os.pipe()
    os.write(writes, told)
    command = [sys.executable, "-c", "import time; time.sleep(600)", f"/dev/fd/{reads}"]
    try:
        with subprocess.Popen(command, pass_fds=[reads]) as process:
            try:
                assert not runs_a_script(process.pid), "it would wait for more of an open pipe"
            finally:
                process.kill()
        assert os.read(reads, 2 * len(told)) == told
    finally:
        os.close(reads)
        os.close(writes)


def lab_of(*processes: ProcessRecord) -> LabRecord:
    """As much of a lab as is needed to end these."""
    return LabRecord(
        name="small", servers=(), controller_namespace="", controller_address="10.9.0.254",
        namespaces=(), processes=processes,
    )  # fmt: skip


async def test_a_script_that_is_left_in_a_lab_has_its_time(local: Any, program: Path) -> None:
    script = await local(script_specs()[0])
    launcher = LabLauncher(Lab(lab_of()))
    await asyncio.to_thread(launcher.end_left, [RunningProgram("s1", script.pid, 1.0)])
    assert (program.parent / "saved").read_text() == "1"


async def test_a_script_in_a_lab_that_is_taken_down_has_its_time(
    local: Any, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = await local(script_specs()[0])
    (program.parent / "lab").mkdir()
    monkeypatch.setattr(records, "directory_of", lambda name: program.parent / "lab")
    words = Path(f"/proc/{script.pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    record = lab_of(describe(script.pid, words))
    await asyncio.to_thread(remove, record, lambda text: None)
    assert (program.parent / "saved").read_text() == "1"
