"""A command imports nothing from the folder that it is run in, which may be another user's."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.controller import lab as labs
from placewire.controller.commands import init, session
from placewire.controller.decide.measured.optimizer_process import OPTIMIZER_PROGRAM, run_relayed
from placewire.controller.errors import PlacewireError
from placewire.controller.own_lab import LAB_VARIABLE
from placewire.optimizer.published.formulations import child_process


@pytest.fixture
def folder_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this process is in; a program that imports from it writes a file there."""
    text = "import pathlib, sys; pathlib.Path(__file__).with_name('imported').touch(); sys.exit(9)"
    for module in ("argparse", "importlib", "json", "pickle", "placewire"):
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_optimizer_s_commands(folder_of_another: Path) -> None:
    assert b"auto" in await run_relayed([*OPTIMIZER_PROGRAM, "engines"], print)
    assert not (folder_of_another / "imported").exists()


async def test_what_fails_is_named_by_its_command() -> None:
    with pytest.raises(PlacewireError) as raised:
        await run_relayed([*OPTIMIZER_PROGRAM, "show", "/nowhere"], lambda line: None)
    assert raised.value.where == "placewire.optimizer.cli show"
    assert raised.value.what == "placewire.optimizer.cli ended with 3"


@pytest.mark.parametrize("command", ["apply", "init"])
def test_a_command_that_goes_on_in_a_lab_as_root(
    folder_of_another: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    began: list[Sequence[str]] = []
    lab = SimpleNamespace(name="here", run_in_controller=lambda argv, more={}: began.append(argv))
    monkeypatch.setattr(labs, "find_lab", lambda name: lab)
    monkeypatch.delenv(LAB_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["controller", "--help"])
    if command == "apply":
        session._enter_lab(lab, argparse.Namespace(no_lab=False))  # type: ignore[arg-type]
    else:
        monkeypatch.setattr(init, "_init", lambda arguments: None)
        monkeypatch.setattr(init, "interruptible", lambda work: 0)
        init.run(argparse.Namespace(out=folder_of_another / "plan.yaml", lab="here"))
    (argv,) = began
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.stdout.startswith("usage: controller"), ended.stderr
    assert not (folder_of_another / "imported").exists()


def test_a_child_of_a_formulation(folder_of_another: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[Sequence[str]] = []

    def stop(command: Sequence[str], **options: Any) -> None:
        began.append(command)
        raise InterruptedError

    monkeypatch.setattr(child_process, "subprocess", SimpleNamespace(Popen=stop, PIPE=None))
    with pytest.raises(InterruptedError):
        child_process._in_a_child(print, 1.0, 0.0, print)  # type: ignore[arg-type]
    subprocess.run(began[0], input=b"", capture_output=True, check=False)
    assert not (folder_of_another / "imported").exists()
