"""After a job nothing of a rank's pipes is left open, though another process holds their ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewire.controller.launch.local import LocalRank, start_rank
from placewire.controller.launch.ranks import run_ranks
from placewire.job.contract.specification import ProgramSpec
from tests.controller.launch.rank_programs import PRELUDE, specs

# The daemon has a session of its own, so that it outlives the rank.
LEAVES_A_DAEMON = """
import subprocess
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(left.pid, flush=True)
finish()
"""


class Starter:
    def __init__(self, file: Path) -> None:
        self._file = file

    async def start(self, spec: ProgramSpec) -> LocalRank:
        return await start_rank(
            spec, lambda file: [sys.executable, str(self._file), file],
            workdir=self._file.parent, environment=os.environ,
        )  # fmt: skip


def pipes() -> set[str]:
    found = (_target(entry) for entry in Path("/proc/self/fd").iterdir())
    return {target for target in found if target.startswith("pipe:")}


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:  # That by which the folder is read.
        return ""


@pytest.fixture
def printed() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    for line in lines:
        os.kill(int(line), signal.SIGKILL)


async def test_a_daemon_that_a_rank_left_keeps_no_pipe_of_ours_open(
    tmp_path: Path, printed: list[str]
) -> None:
    file = tmp_path / "stand_in.py"
    file.write_text(PRELUDE + LEAVES_A_DAEMON)
    before = pipes()
    await run_ranks(
        Starter(file), specs(1), lambda event: None,
        on_line=lambda rank, text, is_error: printed.append(text),
    )  # fmt: skip
    assert pipes() == before
    (daemon,) = printed
    os.kill(int(daemon), 0)  # It is there.
