"""Tests that a solver's process which ends by itself is told apart from one that is out of time."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.published.formulations import child_process
from placewire.optimizer.published.formulations.errors import SolverCrashedError
from placewire.optimizer.published.formulations.papers import formulate
from placewire.optimizer.published.formulations.starts import starting_devices
from tests.optimizer.published.test_sorted_intervals import odd


@pytest.fixture
def formulation(monkeypatch):
    monkeypatch.setattr(child_process, "_SMALL_PARTS", 0)
    return formulate(odd(40, 3), "thesis-p2", with_rows=False)


def test_an_error_in_it_is_no_time_limit(formulation, capfd):
    begun = [np.zeros(7, dtype=np.int64)]  # of another graph
    with pytest.raises(SolverCrashedError, match="ended with exit code 1"):
        child_process.solve_intervals(formulation, begun, 60.0, 0.0, lambda answer: None)
    assert "Traceback" in capfd.readouterr().err


def test_its_death_is_no_time_limit_even_after_an_answer(formulation, monkeypatch):
    started: list[Any] = []
    original = subprocess.Popen

    def start(*given: Any, **named: Any) -> Any:
        started.append(original(*given, **named))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    heard: list[Any] = []

    def hear(answer: Any) -> None:
        heard.append(answer)
        os.kill(started[0].pid, signal.SIGKILL)

    starts = starting_devices(formulation.instance.problem)
    with pytest.raises(SolverCrashedError, match="by signal 9, as the kernel"):
        child_process.solve_intervals(formulation, starts, 60.0, 0.0, hear)
    assert heard[0].values is not None
