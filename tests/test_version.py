"""Every command says its version."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest


@pytest.mark.parametrize("module", ["controller.cli", "optimizer.cli", "agent.main"])
def test_every_command_says_its_version(module: str) -> None:
    command = [sys.executable, "-m", f"placewire.{module}", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"placewire {version('placewire')}\n"
