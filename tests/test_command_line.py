"""An interrupt ends every command with one line and one exit status, from its first import on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from placewire import command_line
from tests.paths import ROOT

COMMANDS = ("controller", "agent", "optimizer")
# Stands in for a module that every command imports, at its begin, and whose import takes long.
IMPORTED = """
import pathlib, time
pathlib.Path(__file__).with_name("begun").touch()
time.sleep(600)
"""
# A shell that runs these tests in the background has all their processes ignore the signal.
BEGUN_AT_A_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from placewire.command_line import %s
%s()
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_while_a_command_imports_its_modules(command: str, tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text(IMPORTED)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", BEGUN_AT_A_TERMINAL % (command, command)],
        env={**os.environ, "PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            while not (tmp_path / "begun").exists():
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (130, "", f"{command}: interrupted\n")


def test_every_command_that_is_installed_begins_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {name: f"placewire.command_line:{name}" for name in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_begun_by_its_module_is_the_same(command: str) -> None:
    program = [sys.executable, "-m", command_line.__name__, command, "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {command} ")
