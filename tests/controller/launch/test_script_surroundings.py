"""Over a real sshd on this machine: a script has the plan's variables and its own modules, and what
starts it has neither, so that they cannot break it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from placewire.controller.launch.ranks import run_ranks
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import Surroundings
from placewire.job.contract.specification import RankEvent, Started
from tests.controller.launch.ssh_stage import ADDRESS, PRIVATE, folders
from tests.job.test_script import spec

pytestmark = pytest.mark.network

SCRIPT = """
import json, os, subprocess, sys
import pydantic
def environment(pid):
    told = open(f"/proc/{pid}/environ").read().split("\\0")
    return dict(one.split("=", 1) for one in told if "=" in one)
own, starter = environment("self"), environment(os.getppid())
listed = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout
print(json.dumps({
    "pydantic": pydantic.WHOSE,
    "own": [own.get(name) for name in ("PRIVATE", "LD_LIBRARY_PATH", "PLACEWIRE_RUN")],
    "starter": [starter.get(name) for name in ("PRIVATE", "LD_LIBRARY_PATH", "PLACEWIRE_RUN")],
    "listed": [text in listed for text in ("placewire.job", own["PRIVATE"])],
    "folder": os.getcwd(),
}))
"""


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    """A folder with modules of names that Placewire imports, and variables that lead to more."""
    files = {
        "work/types.py": "raise SystemExit('the types of the user')",
        "work/token.py": "raise SystemExit('the token of the user')",
        "work/scripts/train.py": SCRIPT,
        "packages/pydantic/__init__.py": "WHOSE = 'of the user'",
        "packages/torch/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    given = {
        "PRIVATE": PRIVATE, "PYTHONPATH": str(tmp_path / "packages"), "PYTHON": sys.executable,
        "LD_LIBRARY_PATH": str(tmp_path / "libraries"), "PLACEWIRE_RUN": "of the user",
    }  # fmt: skip
    return Surroundings(sys.executable, str(tmp_path / "work"), given)


@pytest.mark.parametrize("words", [(), ("sh", "-c", 'exec "$PYTHON" "$@"', "sh")])
async def test_what_starts_a_script_has_nothing_of_the_script_s(
    login: Login, around: Surroundings, words: tuple[str, ...]
) -> None:
    before = folders(login)
    launcher = SshLauncher(
        {"s1": ADDRESS}, login, around, plan="small", script="scripts/train.py",
        script_python=words,
    )  # fmt: skip
    launcher.require_ready()
    said: list[str] = []
    events: list[RankEvent] = []
    await run_ranks(
        launcher,
        [spec(Path("scripts/train.py"), python=words, rail_parts=(0.5, 0.5))],
        events.append,
        on_line=lambda rank, text, is_error: said.append(text),
    )
    assert events[-1].event == "finished", said
    (started,) = (event for event in events if isinstance(event, Started))
    assert "are cut: a 50%, b 50%" in started.notes[-1]
    (line,) = (text for text in said if text.startswith("[0] {"))
    found = json.loads(line.removeprefix("[0] "))
    assert found["pydantic"] == "of the user"
    assert found["folder"] == around.workdir
    private, libraries, mark = found["own"]
    assert (private, libraries) == (PRIVATE, around.environment["LD_LIBRARY_PATH"])
    assert found["starter"] == [None, None, mark] and ":rank:" in mark, "by which it is ended"
    assert found["listed"] == [True, False], "the program, and none of the variables"
    assert folders(login) == before


def test_a_file_that_is_no_specification_is_told_of_without_what_it_has(tmp_path: Path) -> None:
    of = spec(tmp_path / "x.py", environment={"PRIVATE": PRIVATE}).model_dump()
    (tmp_path / "spec.json").write_text(json.dumps({**of, "environments": of["environment"]}))
    done = subprocess.run(
        [sys.executable, "-m", "placewire.job", str(tmp_path / "spec.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "environments" in done.stderr
    assert PRIVATE not in done.stderr
