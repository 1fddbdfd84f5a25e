"""The first plan of a search is read from its lines of progress."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.engine import first_plan as module
from benchmarks.engine.first_plan import First, first_plan
from placewire.optimizer.commands.progress import ProgressLines
from placewire.optimizer.engines.solution import Progress


def lines_of(steps: list[float], capsys: pytest.CaptureFixture[str], monkeypatch) -> list[str]:
    """What a search prints whose incumbents are these, a second apart."""
    clock = iter(range(100))
    counted = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr("placewire.optimizer.commands.progress.time", counted)
    lines = ProgressLines()
    for k, step in enumerate(steps):
        lines(Progress(float(k), step, 0.05, 1000 * k))
    return capsys.readouterr().err.splitlines()


def test_it_is_the_first_step_shorter_than_one_device(capsys, monkeypatch) -> None:
    told = lines_of([float("inf"), 0.1915, 0.191497, 0.0912, 0.0678], capsys, monkeypatch)
    assert first_plan(enumerate(told), 0.1915) == First(told.index(told[-2]), 0.0912)


def test_a_step_in_other_units_is_read_too(capsys, monkeypatch) -> None:
    told = ["solving 1, 2 operators on 4 devices", *lines_of([2.5, 1.25], capsys, monkeypatch)]
    assert first_plan(enumerate(told), 2.5) == First(2, 1.25)


def test_where_one_device_stays_the_best_there_is_none(capsys, monkeypatch) -> None:
    told = lines_of([0.1915, 0.1915], capsys, monkeypatch)
    assert told and first_plan(enumerate(told), 0.1915) is None


@pytest.mark.parametrize(
    ("prints", "told"), [("", "it printed nothing"), ("echo no memory >&2", "no memory")]
)
def test_a_command_that_fails_is_told_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, told: str
) -> None:
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\n{prints}\nexit 3\n")
    command.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(command))
    monkeypatch.setattr(module, "variant_files", lambda *_: [])
    with pytest.raises(RuntimeError, match=f"^optimizer solve ended with 3: {told}$"):
        next(module.tables(None))
