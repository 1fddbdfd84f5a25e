"""Commands answer fast, the readme is true, and the playbook and the lock file are valid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

HEAVY = (
    "torch", "numba", "scipy", "aiohttp", "pyroute2", "ovs", "networkx", "rich", "argcomplete",
)  # fmt: skip


@pytest.mark.parametrize(
    "module",
    [
        "placewire.controller.cli",
        "placewire.agent.main",
        "placewire.optimizer.cli",
        "placewire.oracle",
    ],
)
def test_help_loads_nothing_heavy(module: str) -> None:
    program = (
        "import sys, runpy\n"
        f"sys.argv = ['x', '--help']\n"
        "try:\n"
        f"    runpy.run_module('{module}', run_name='__main__')\n"
        "except SystemExit as done:\n"
        "    assert done.code == 0, done.code\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
    assert done.stdout.rstrip().endswith("LOADED []"), done.stdout.splitlines()[-1]


def test_the_readme_begins_with_what_it_is_and_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("## The same")


def test_the_playbook_is_valid() -> None:
    ansible = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [ansible, "--syntax-check", "-i", "localhost,", "playbooks/agent.yaml"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_everything_is_locked_and_torch_is_not() -> None:
    """The lock file must not decide which torch is installed: users choose the CUDA build."""
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements.lock").read_text(), re.M)
    assert "torch" not in names and not [name for name in names if name.startswith("nvidia")]
    assert {"pydantic", "numpy", "pyroute2", "ovs", "aiohttp"} <= set(names)


def test_the_optimizer_lines_of_the_readme_run(tmp_path: Path) -> None:
    """They run as written, in an empty folder, with the present interpreter's commands; those after
    them profile a large model, which takes long."""
    text, _, _ = (ROOT / "README.md").read_text().partition("Should you distribute")
    lines = re.findall(r"^    \.venv/bin/(optimizer .*)$", text, re.M)
    assert [line.split()[1] for line in lines] == ["profile", "solve", "explain", "check"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in lines:
        command = [str(Path(sys.executable).with_name("optimizer")), *line.split()[1:]]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=900)
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "the placement holds"
