"""Ranks know from their start for how long they may run, and are told while others still start."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placewire.controller.errors import JobFailed
from placewire.controller.launch import ranks
from placewire.controller.launch.local import LocalRank, start_rank
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import ProgramSpec, RankEvent, StepDone
from tests.controller.launch.rank_programs import PRELUDE, runs, specs


class Here:
    """Starts a stand-in here, in this process's own network."""

    def __init__(self, folder: Path, source: str) -> None:
        self.file = folder / "stand_in.py"
        self.file.write_text(PRELUDE + source)

    async def start(self, spec: ProgramSpec) -> LocalRank:
        return await start_rank(
            spec,
            lambda file: [sys.executable, str(self.file), file],
            workdir=self.file.parent,
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


CONTROLLER = """
import asyncio, os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
from placewire.controller.launch.ranks import run_ranks
from tests.controller.launch.rank_programs import GOES_ON, specs
from tests.controller.launch.test_first_hold import Here
class Dies(Here):
    async def start(self, spec):
        if spec.rank == 1:
            Path({folder!r}, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        rank = await super().start(spec)
        Path({folder!r}, "pid").write_text(str(rank.pid))
        return rank
dying = Dies(Path({folder!r}), GOES_ON)
# Ranks of one server start one after the other.
on_one = [spec.model_copy(update={{"device": f"s1/{{spec.rank}}"}}) for spec in specs()]
asyncio.run(run_ranks(dying, on_one, print, held_seconds=lambda: 4.0))
"""


def test_a_rank_whose_controller_dies_before_it_tells_anything_ends_with_its_lease(
    tmp_path: Path,
) -> None:
    script = CONTROLLER.format(path=sys.path, folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == -9
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(pid)
    # This process may be held up for longer than the rank runs: what tells are the rank's marks.
    last, died = (tmp_path / name for name in ("stand_in.py.0", "died"))
    assert last.stat().st_mtime > died.stat().st_mtime, "it outlives its controller"


async def test_the_first_rank_is_told_while_the_second_still_starts(tmp_path: Path) -> None:
    told = asyncio.Event()
    source = 'sys.stdin.readline(); say(event="step", step=int(spec["held_seconds"]), seconds=1)'

    class Slow(Here):
        async def start(self, spec: ProgramSpec) -> LocalRank:
            if spec.rank == 1:
                await asyncio.wait_for(told.wait(), 60)
            return await super().start(spec)

    seen: list[RankEvent] = []

    def on_event(event: RankEvent) -> None:
        seen.append(event)
        told.set()

    slow = Slow(tmp_path, source + "; finish()")
    await run_ranks(slow, specs(), on_event, held_seconds=lambda: 50.0)
    assert [event.step for event in seen if isinstance(event, StepDone)] == [50, 50]


async def test_a_controller_that_is_held_up_still_reads_what_a_rank_said_last() -> None:
    async def reading() -> None:
        time.sleep(0.6)  # Nothing else of this process runs.
        for _ in range(20):
            await asyncio.sleep(0)

    read = asyncio.create_task(reading())
    await ranks._wait([read], 0.5)
    assert read.done()


async def test_a_rank_that_a_realtime_signal_ends_is_named(tmp_path: Path) -> None:
    killed = Here(tmp_path, "os.kill(os.getpid(), 35)")
    with pytest.raises(JobFailed, match="rank 0 was killed by signal 35"):
        await run_ranks(killed, specs(1), print)
