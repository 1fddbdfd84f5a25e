"""Two commands at once: both are shown whole, either's failure counts, an interrupt ends both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_side_by_side.py")


def started(first: str, beside: str) -> subprocess.Popen[str]:
    """Two Python programs."""
    program = (
        "import sys; from run_side_by_side import run_side_by_side as run; "
        f"sys.exit(run([sys.executable, '-c', {first!r}], [sys.executable, '-c', {beside!r}]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=SCRIPT.parent, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("first", "beside", "code"), [(0, 0, 0), (3, 0, 3), (0, 4, 4)])
def test_either_failure_counts(first: int, beside: int, code: int) -> None:
    process = started(f"raise SystemExit({first})", f"raise SystemExit({beside})")
    process.communicate(timeout=60)
    assert process.returncode == code


def test_output_beside_comes_last_and_is_whole() -> None:
    first = "import time; time.sleep(0.5); print('first')"
    idle = "print(os.sched_getscheduler(0) == os.SCHED_IDLE)"
    beside = f"import os, time; time.sleep(0.2); {idle}; print('beside')"
    said, _ = started(first, beside).communicate(timeout=60)
    assert said.splitlines() == ["first", "True", "beside"]


def test_what_runs_longer_beside_is_shown_to_its_end() -> None:
    said, _ = started("print('first')", "import time; time.sleep(1); print('late')").communicate()
    assert said.splitlines() == ["first", "late"]


def test_an_interrupt_ends_both_and_lets_them_clear_up(tmp_path: Path) -> None:
    program = (
        "import pathlib, time\n"
        "try:\n"
        "    pathlib.Path({name!r}).write_text('runs'); time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.3); pathlib.Path({name!r}).write_text('cleared up'); raise SystemExit(2)"
    )
    files = [tmp_path / "first", tmp_path / "beside"]
    process = started(*(program.format(name=str(file)) for file in files))
    until = time.monotonic() + 30
    while not all(file.exists() for file in files) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert [file.read_text() for file in files] == ["cleared up", "cleared up"]
