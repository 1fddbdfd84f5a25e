"""run_side_by_side shows all output, reports any failure, and an interrupt ends all commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.run_side_by_side import Lane, lanes
from tests.skipped import VARIABLE, summary

# These tests run in the idle class, which others on the machine can keep waiting for long.
PATIENCE_SECONDS = 300
SCRIPT = Path(__file__).with_name("run_side_by_side.py")


def started(*programs: str) -> subprocess.Popen[str]:
    """Runs Python programs as lanes, the idle ones from the third on."""
    program = (
        "import sys; from tests.run_side_by_side import Lane, run_side_by_side as run; "
        "sys.exit(run(*(Lane([sys.executable, '-c', one], idle=number > 1) "
        f"for number, one in enumerate({programs!r}))))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def asked(lane: Lane) -> tuple[str, list[Path], list[Path]]:
    """The marks that the lane asks pytest for, the folders that it gives, and those left out."""
    _, _, _, *words = lane.command
    marks, *given = words[words.index("-m") + 1 :]
    left_out = [Path(one.removeprefix("--ignore=")) for one in given if one[0] == "-"]
    return marks, [Path(one) for one in given if one[0] != "-"], left_out


def has(lane: Lane, file: Path) -> bool:
    """Whether pytest looks into the file in this lane."""
    _, given, left_out = asked(lane)
    above = {file, *file.parents}
    return not above.isdisjoint(given) and above.isdisjoint(left_out)


def test_every_test_is_in_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are given folders, so that a test's marks must fit the lanes of its folder."""
    monkeypatch.chdir(ROOT)
    of_pytest = [lane for lane in lanes() if "pytest" in lane.command]
    for lane in of_pytest:
        assert asked(lane)[0] == (
            "not (network or timed or lab or thorough)"
            if lane.idle
            else "(network or timed or lab) and not thorough"
        )
    for file in Path("tests").rglob("test_*.py"):
        marks = set(re.findall(r"pytest\.mark\.(network|timed|lab)\b", file.read_text()))
        having = [lane for lane in of_pytest if has(lane, file)]
        measuring = [lane for lane in having if not lane.idle]
        assert len(having) - len(measuring) == 1, file
        assert len(measuring) <= 1 and bool(measuring) >= bool(marks), file
        assert "lab" not in marks or measuring[0].apart, file
        assert "end_to_end" not in file.parts or "lab" in marks, file


@pytest.mark.parametrize("codes", [(0, 0), (3, 0, 0), (0, 4, 0), (0, 0, 5), (0, 0, 0, 6)])
def test_any_failure_counts(codes: tuple[int, ...]) -> None:
    process = started(*(f"raise SystemExit({code})" for code in codes))
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == max(codes)


def test_what_the_others_say_comes_after_the_first_and_is_whole() -> None:
    first = "import time; time.sleep(0.5); print('first')"
    second = "import time; print('second'); time.sleep(1); print('to its end')"
    idle = "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE); print('idle')"
    said, _ = started(first, second, idle).communicate(timeout=PATIENCE_SECONDS)
    assert said.splitlines() == ["first", "second", "to its end", "True", "idle"]


def test_what_runs_longer_is_shown_to_its_end() -> None:
    late = "import time; time.sleep(1); print('late')"
    said, _ = started("print('first')", "", late).communicate(timeout=PATIENCE_SECONDS)
    assert said.splitlines() == ["first", "late"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_lets_them_clear_up(
    tmp_path: Path, ending: signal.Signals
) -> None:
    program = (
        "import pathlib, time\n"
        "try:\n"
        "    pathlib.Path({name!r}).write_text('runs'); time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(0.3); pathlib.Path({name!r}).write_text('cleared up'); raise SystemExit(2)"
    )
    files = [tmp_path / name for name in ("first", "second", "idle", "idle too")]
    process = started(*(program.format(name=str(file)) for file in files))
    until = time.monotonic() + PATIENCE_SECONDS
    while not all(file.exists() for file in files) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, ending)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert [file.read_text() for file in files] == ["cleared up"] * 4


def test_an_interrupt_reaches_the_commands_of_make(tmp_path: Path) -> None:
    """Which make leaves to the terminal; a lane has none."""
    rule = tmp_path / "Makefile"
    rule.write_text(f"long:\n\t@touch started; exec sleep {2 * PATIENCE_SECONDS}\n")
    program = (
        "import sys; from tests.run_side_by_side import Lane, run_side_by_side as run; "
        f"sys.exit(run(Lane(['make', '-s', '-C', {str(tmp_path)!r}, 'long'], together=True)))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    until = time.monotonic() + PATIENCE_SECONDS
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 130


def test_what_is_skipped_is_told_with_its_reason(tmp_path: Path) -> None:
    skipping = tmp_path / "test_skipping.py"
    skipping.write_text(
        "import pytest\n"
        "@pytest.mark.skip(reason='no card')\n"
        "def test_one(): pass\n"
        "def test_two(): pytest.skip('no cable')\n"
        "def test_three(): pass\n"
    )
    file = tmp_path / "skipped"
    assert summary(file) == "no test was skipped"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.skipped", str(skipping)],
        cwd=ROOT, env={**os.environ, VARIABLE: str(file)}, check=True, capture_output=True,
    )  # fmt: skip
    said = summary(file).splitlines()
    assert said[:2] == ["skipped: 2", "  no cable"] and said[3] == "  no card"
    assert said[2].endswith("::test_two") and said[4].endswith("::test_one")
