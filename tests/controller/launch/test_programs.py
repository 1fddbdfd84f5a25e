"""A program that is run to its end: its input and output arrive, and it never outlives the call."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from placewire.controller.errors import PlacewireError
from placewire.controller.launch import programs
from placewire.controller.launch.programs import run_to_end
from tests.controller.launch.rank_programs import runs


async def run(source: str, given: bytes = b"") -> tuple[int, bytes, tuple[str, ...], list[str]]:
    said: list[str] = []
    ended = await run_to_end(
        [sys.executable, "-c", source], environment=os.environ, given=given, on_line=said.append
    )
    return ended.status, ended.output, ended.tail, said


async def test_what_goes_in_and_comes_out() -> None:
    source = """
import sys
data = sys.stdin.buffer.read()
for k in range(30): print("line", k, file=sys.stderr)
sys.stdout.buffer.write(data[::-1]); sys.exit(3)
"""
    given = os.urandom(1_000_000)
    status, output, tail, said = await run(source, given)
    assert (status, output) == (3, given[::-1])
    assert said == [f"line {k}" for k in range(30)] and tail == tuple(said[-20:])


async def test_a_program_need_not_read_and_may_be_killed() -> None:
    status, output, _, _ = await run("import os; os.kill(os.getpid(), 9)", b"x" * 1_000_000)
    assert (status, output) == (-9, b"")


async def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(FileNotFoundError):
        await run_to_end(["/no/such/program"], environment={}, on_line=print)


async def test_a_group_of_another_user_does_not_keep_the_others_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def refuse(group: int, number: int) -> None:
        asked.append(group)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(programs, "_groups_of", lambda session: {8, 9})
    programs.kill(cast(Any, SimpleNamespace(pid=7, returncode=None)))
    assert asked == [7, 8, 9]


def with_a_child(file: Path) -> str:
    """A program that has a child, and then writes both pids into the file."""
    return f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(file)!r} + ".part", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(file)!r} + ".part", {str(file)!r})
time.sleep(600)
"""


async def test_when_cancelled_nothing_is_left_of_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    task = asyncio.create_task(run(with_a_child(file)))
    while not file.exists():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        for pid in map(int, file.read_text().split()):
            while runs(pid):  # It dies when it gets a processor.
                await asyncio.sleep(0.02)


async def test_when_cancelled_while_it_starts_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has a child before whoever started it knows of it: the machine is busy."""
    file = tmp_path / "pids"
    create = asyncio.create_subprocess_exec

    async def slowly(*words: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*words, **options)
        while not file.exists():
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.sleep(0)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    task = asyncio.create_task(run(with_a_child(file)))
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        for pid in map(int, file.read_text().split()):
            while runs(pid):
                await asyncio.sleep(0.02)


async def test_a_program_that_prints_without_end_fills_no_memory() -> None:
    source = "import sys\nwhile True: sys.stdout.buffer.write(bytes(1_000_000))"
    with pytest.raises(PlacewireError, match=r"s1: a program there printed more than 1 MiB"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(programs, "LARGEST_ANSWER_BYTES", 2**20)
            async with asyncio.timeout(60):
                await run_to_end(
                    [sys.executable, "-c", source],
                    environment=os.environ,
                    on_line=print,
                    where="s1",
                )
