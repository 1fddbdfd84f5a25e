"""The built wheel, in a bare environment outside the checkout, beside modules of the user's own.

What Placewire depends on is taken from the environment of the tests, because installing torch and
the solvers anew takes minutes. Placewire itself, its commands and its entry points come from the
wheel alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from placewire.job.script.environment import ON_PATH
from placewire.optimizer.graph.graph_file import save_graph
from tests.optimizer.cases import cluster, graph
from tests.paths import ROOT

# Modules that users have, and that must never be imported by Placewire.
USERS_OWN = ("agent", "controller", "job", "oracle", "examples/__init__")
MODEL = """
import optimizer  # the user's own

training_step = optimizer.training_step
"""
OPTIMIZER = """
import torch
from placewire.optimizer.capture.protocol import TrainingStep
from torch import nn

def training_step(batch, seed):
    torch.manual_seed(seed)
    inputs = torch.zeros(batch, 8), torch.zeros(batch, 2)
    return TrainingStep(nn.Linear(8, 2), inputs, lambda step: inputs, nn.MSELoss())
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheels in it, and a folder of the user's."""

    environment: Path
    folder: Path

    def run(self, *words: str) -> str:
        """What the command prints. It is run from the user's folder, with that on the path."""
        path = f"{self.environment / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": ".", "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


def wheel_of(source: Path, folder: Path) -> Path:
    """Built from a copy: setuptools writes beside what it reads."""
    copy = folder / source.name
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "docs", "tests", "*.egg-info")
    shutil.copytree(source, copy, symlinks=True, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(copy)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    others = ROOT / "tests" / "distribution" / "other_methods"
    wheels = [wheel_of(source, tmp_path_factory.mktemp("wheel")) for source in (ROOT, others)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, *map(str, wheels)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    folder = tmp_path_factory.mktemp("user")
    for name in USERS_OWN:
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"raise RuntimeError('{name} of the user was imported')\n")
    (folder / "optimizer.py").write_text(OPTIMIZER)
    (folder / "model.py").write_text(MODEL)
    names = "ABCDEFGH"
    tensors = [(a, [b], 1000) for a, b in pairwise(names)]
    save_graph(graph(dict.fromkeys(names, 0.1), tensors), folder / "graph.json")
    (folder / "two.json").write_text(cluster(2).model_dump_json())
    (folder / "three.json").write_text(cluster(3).model_dump_json())
    return Installed(environment, folder)


def test_it_is_the_wheel_that_runs(installed: Installed) -> None:
    program = "import placewire.agent.main, placewire.frozen; print(placewire.agent.main.__file__)"
    assert str(installed.environment) in installed.run("python", "-c", program)
    files = {path.name for path in installed.environment.glob("lib/*/site-packages/placewire/*")}
    assert {"agent", "controller", "examples", "job", "optimizer", "oracle", "py.typed"} <= files
    top = {path.name for path in installed.environment.glob("lib/*/site-packages/*")}
    rooms = {"agent", "controller", "examples", "job", "optimizer", "oracle"}
    assert not top & (rooms | {"tests", "benchmarks"})
    # No package: a script's own interpreter finds these on its path.
    (on_path,) = installed.environment.glob("lib/*/site-packages/placewire/job/script/on_path")
    here = {path.relative_to(ON_PATH) for path in ON_PATH.rglob("*.py")}
    assert {path.relative_to(on_path) for path in on_path.rglob("*.py")} == here


@pytest.mark.parametrize("command", ["controller", "agent", "optimizer"])
def test_commands_run_beside_modules_of_their_names(installed: Installed, command: str) -> None:
    assert f"usage: {command}" in installed.run(command, "--help")


def test_every_command_of_the_controller_is_found(installed: Installed) -> None:
    for command in ("apply", "preview", "status", "verify", "lab", "provision"):
        assert "usage: controller" in installed.run("controller", command, "--help")


def test_a_model_beside_such_a_module_is_captured(installed: Installed) -> None:
    model = ("model:training_step", "--batch", "4", "--out", "step.json")
    installed.run("optimizer", "capture", *model)
    assert "operators" in installed.run("optimizer", "show", "step.json")


def test_methods_of_another_distribution_are_listed(installed: Installed) -> None:
    assert "one half on each of two devices" in installed.run("optimizer", "engines")
    assert "neighbours in the topological order" in installed.run("optimizer", "reductions")
    taken = installed.run(
        "optimizer", "engines", "--graph", "graph.json", "--cluster", "three.json"
    )
    assert "halves are for two devices" in taken


@pytest.mark.parametrize(
    "words",
    [
        ("--engine", "halves"),
        # It compiles the search, as an installation of its own.
        pytest.param(("--engine", "auto", "--reduction", "pairs"), marks=pytest.mark.thorough),
    ],
)
def test_methods_of_another_distribution_solve_and_pass_the_check(
    installed: Installed, words: tuple[str, ...]
) -> None:
    out = installed.folder / "placement.json"
    installed.run(
        "optimizer", "solve", "graph.json", "--cluster", "two.json", *words, "--moves", "200",
        "--out", str(out),
    )  # fmt: skip
    assert json.loads(out.read_text())["engine"] == words[1]
    installed.run("optimizer", "check", "graph.json", str(out))
