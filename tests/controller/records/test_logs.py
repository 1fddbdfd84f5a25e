"""`controller logs`: what ranks printed, kept for each run, and for nobody else to read."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from placewire.controller.cli import main
from placewire.controller.records.run_log import RunLog, followed, run_log, runs_of
from tests.controller.plans import plan_document


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[object, str, str]:
    """Returns (exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as ended:
        main(["logs", *map(str, arguments)])
    return ended.value.code, *capsys.readouterr()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for text in ("first", "second"):
        with run_log(tmp_path / "logs", "small") as log:
            log.write(0, f"the {text} run")
            log.write(11, "rank 0 | is said by rank 11")
    return tmp_path


def test_the_last_run_is_shown_and_those_before_it(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output, _ = said(capsys, "small", "--state-dir", state)
    lines = output.splitlines()
    assert code == 0 and [line[8:] for line in lines] == [
        " rank 0 | the second run", " rank 11 | rank 0 | is said by rank 11",
    ]  # fmt: skip
    _, output, _ = said(capsys, "small", "--state-dir", state, "--rank", "0", "--back", "2")
    assert [line[8:] for line in output.splitlines()] == [" rank 0 | the first run"]
    code, output, error = said(capsys, "small", "--state-dir", state, "--rank", "1")
    assert (code, output) == (2, "") and "rank 1 printed nothing in this run" in error
    assert "ranks that printed: 0, 11" in error


def test_as_a_document(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log,) = runs_of(state / "logs", "small")[-1:]
    with log.open("a") as file:
        file.write("10:15:02 rank 0 | torn")
    code, output, _ = said(capsys, "small", "--state-dir", state, "--json")
    document = json.loads(output)
    assert code == 0 and document["log"] == str(log)
    assert [(one["rank"], one["text"]) for one in document["lines"]] == [
        (0, "the second run"), (11, "rank 0 | is said by rank 11"),
    ]  # fmt: skip
    _, output, _ = said(capsys, "small", "--state-dir", state, "--json", "--rank", "11")
    assert [one["rank"] for one in json.loads(output)["lines"]] == [11]


def test_a_plan_file_says_whose(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = state / "plan.yaml"
    plan.write_text(yaml.safe_dump(plan_document(name="small")))
    assert "the second run" in said(capsys, plan, "--state-dir", state)[1]
    code, _, error = said(capsys, "other", "--state-dir", state)
    assert code == 2 and "0 runs of plan 'other'" in error
    code, _, error = said(capsys, "small", "--state-dir", state, "--back", "3")
    assert code == 2 and "2 runs" in error


def test_nobody_else_reads_them_and_old_ones_go(state: Path) -> None:
    for _ in range(25):
        with run_log(state / "logs", "small") as log:
            log.write(0, "one more")
    kept = runs_of(state / "logs", "small")
    assert len(kept) == 20 and all("one more" in path.read_text() for path in kept)
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(kept[0].parent.stat().st_mode) == 0o700


def test_runs_of_one_moment_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    for name in (f"2026-01-02T03-04-05{f'-{n}' if n > 1 else ''}.log" for n in range(12, 0, -1)):
        file = tmp_path / "small" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (1.0, 1.0))
    assert [path.stem[20:] for path in runs_of(tmp_path, "small")] == ["", *map(str, range(2, 13))]


def test_a_full_disk_loses_lines_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(OSError), Path("/dev/full").open("w", buffering=1) as file:
        log = RunLog(file)
        for k in range(3):
            log.write(0, f"step {k}")
    assert capsys.readouterr().err.count("/dev/full: No space left on device; lines are lost") == 1


def test_a_long_log_keeps_its_beginning_and_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, longest = tmp_path / "logs" / "small" / "now.log", 4000
    path.parent.mkdir(parents=True)
    with path.open("w+", buffering=1) as file:
        log = RunLog(file, longest_bytes=longest)
        for k in range(2000):
            log.write(k % 2, f"line {k} \u00e9")
            assert path.stat().st_size <= longest + 100
    lines = path.read_text().splitlines()
    assert lines[0].endswith("line 0 \u00e9") and lines[-1].endswith("line 1999 \u00e9")
    (said_so,) = (line for line in lines if line.startswith("-- "))
    whole = sum(len(f"00:00:00 rank 0 | line {k} \u00e9\n".encode()) for k in range(2000))
    kept = sum(len(f"{line}\n".encode()) for line in lines if line != said_so)
    assert log.left_out_bytes == whole - kept and f"-- {log.left_out_bytes} bytes" in said_so
    _, output, _ = said(capsys, "small", "--state-dir", tmp_path, "--rank", "1")
    assert said_so in output.splitlines()
    _, output, _ = said(capsys, "small", "--state-dir", tmp_path, "--json")
    assert len(json.loads(output)["lines"]) == len(lines) - 1


def test_what_is_left_out_is_counted_once_where_the_log_could_not_be_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, full = os.pwrite, [True]

    def written(file: int, data: bytes, offset: int) -> int:
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", written)
    path = tmp_path / "now.log"
    lines = [f"line {k}" for k in range(200)]
    with path.open("w+", buffering=1) as file:
        log, lost = RunLog(file, longest_bytes=2000), set[str]()
        for line in lines:
            was_full = bool(full)
            log.write(0, line)
            if was_full and not full:
                lost.add(line)
    assert len(lost) == 1
    whole = sum(len(f"00:00:00 rank 0 | {line}\n") for line in lines if line not in lost)
    kept = path.read_text().splitlines(keepends=True)
    (said_so,) = (line for line in kept if line.startswith("-- "))
    assert log.left_out_bytes == whole - sum(map(len, kept)) + len(said_so)
    assert f"-- {log.left_out_bytes} bytes" in said_so


def test_a_folder_that_cannot_be_made_loses_lines_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("a file")
    with run_log(tmp_path / "logs", "small") as log:
        log.write(0, "a step")
    assert capsys.readouterr().err.count("no log is kept of this run") == 1


def test_a_link_among_the_logs_is_no_run(state: Path) -> None:
    (state / "elsewhere.log").write_text("mine")
    own = state / "logs" / "small"
    (own / "0-link.log").symlink_to(state / "elsewhere.log")
    (own / "0-dangling.log").symlink_to(state / "nowhere")
    assert [path.is_symlink() for path in runs_of(state / "logs", "small")] == [False, False]


class Follower:
    """`controller logs small --follow` in a process of its own."""

    def __init__(self, state: Path, *words: str) -> None:
        command = ["-m", "placewire.controller.cli", "logs", "small", "--follow", *words]
        self.process = subprocess.Popen(
            [sys.executable, *command, "--state-dir", str(state)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()[len("HH:MM:SS") :]


def test_lines_are_followed_until_the_run_ends(tmp_path: Path) -> None:
    with run_log(tmp_path / "logs", "small") as log:
        log.write(0, "begins")
        follower, of_one = Follower(tmp_path), Follower(tmp_path, "--rank", "1")
        assert follower.line() == " rank 0 | begins\n"
        log.write(1, "goes on")
        assert follower.line() == of_one.line() == " rank 1 | goes on\n"
        assert follower.process.poll() is None
        log.write(0, "ends")
    assert follower.line() == " rank 0 | ends\n"
    assert of_one.process.communicate(timeout=60) == ("", "") and of_one.process.returncode == 0
    assert follower.process.communicate(timeout=60) == ("", "") and follower.process.returncode == 0


def test_a_follower_of_a_log_that_is_shortened_goes_on(tmp_path: Path) -> None:
    with run_log(tmp_path / "logs", "small") as long:
        lines = followed(long.path)
        log = RunLog(long._file, long.path, longest_bytes=4_000)
        log.write(0, "x" * 3_900)
        assert "x" in next(lines)
        log.write(0, "y" * 200)
        assert "y" in next(lines)
        log.write(0, "before the end")
        assert log.left_out_bytes > 0
        assert next(lines) == "-- what was logged in a moment is left out here\n"
        log.write(0, "the end")
        assert next(lines).endswith("rank 0 | the end\n")
    assert list(lines) == []


def test_who_follows_ends_it_with_an_interrupt(tmp_path: Path) -> None:
    with run_log(tmp_path / "logs", "small") as log:
        log.write(0, "begins")
        follower = Follower(tmp_path)
        assert follower.line() == " rank 0 | begins\n"
        follower.process.send_signal(signal.SIGINT)
        assert follower.process.communicate(timeout=60) == ("", "")
        assert follower.process.returncode == 0


def test_lines_are_no_document(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, error = said(capsys, "small", "--state-dir", state, "--follow", "--json")
    assert code == 2 and "--follow prints lines" in error
    assert json.loads(output)["exit_code"] == 2
    code, output, _ = said(capsys, "small", "--state-dir", state, "--follow")
    assert code == 0 and "the second run" in output
