"""Files of runs: whoever finds one that is being written finds it so."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from placewire.controller.records.plan_files import files_of, is_written, new_file


def test_a_file_has_its_lock_before_it_can_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever attaches looks at each file, for which it takes a lock for a moment."""
    looked: list[int] = []

    def locked(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            for found in files_of(tmp_path, "small", ".log"):
                looked.append(os.open(found, os.O_RDONLY))
                fcntl.flock(looked[-1], fcntl.LOCK_SH)
        real(descriptor, operation)

    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", locked)
    path, descriptor = new_file(tmp_path, "small", ".log")
    for one in looked:
        os.close(one)
    assert is_written(path)
    os.close(descriptor)
    assert not is_written(path)


def test_files_of_one_second_have_names_of_their_own_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "2026-01-01T00-00-00")
    made = [new_file(tmp_path, "small", ".log") for _ in range(3)]
    assert [path.name for path, _ in made] == [
        "2026-01-01T00-00-00.log", "2026-01-01T00-00-00-2.log", "2026-01-01T00-00-00-3.log",
    ]  # fmt: skip
    assert files_of(tmp_path, "small", ".log") == [path for path, _ in made]
    assert sorted((tmp_path / "small").iterdir()) == sorted(path for path, _ in made)
    assert {stat.S_IMODE(path.stat().st_mode) for path, _ in made} == {0o600}
    for _, descriptor in made:
        os.close(descriptor)


def test_files_that_are_made_at_once_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands hold different locks: that of changes, and that of --detach."""

    def exists(path: Path) -> bool:
        found = real(path)
        time.sleep(0.05)
        return found

    real = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", exists)
    monkeypatch.setattr(time, "strftime", lambda form: "2026-01-01T00-00-00")
    with ThreadPoolExecutor(3) as pool:
        made = [*pool.map(lambda _: new_file(tmp_path, "small", ".log"), range(3))]
    assert len({path for path, _ in made}) == 3
    for _, descriptor in made:
        os.close(descriptor)


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    dies = (
        "import os, sys, pathlib\n"
        "from placewire.controller.records.plan_files import new_file\n"
        "os.path.lexists = lambda path: os._exit(9)\n"
        "new_file(pathlib.Path(sys.argv[1]), 'small', '.log')"
    )
    done = subprocess.run([sys.executable, "-c", dies, str(tmp_path)], check=False)
    (left,) = (tmp_path / "small").iterdir()
    assert done.returncode == 9 and left.suffix == ".new"
    path, descriptor = new_file(tmp_path, "small", ".log")
    assert [*(tmp_path / "small").iterdir()] == [path]
    os.close(descriptor)


def test_nobody_writes_a_file_that_another_command_has_removed(tmp_path: Path) -> None:
    assert not is_written(tmp_path / "gone.log")
