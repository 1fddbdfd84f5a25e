"""A script's interpreter finds a module as `-m` does, and runs none of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from placewire.controller.launch.script_look import PROGRAM, TOLD, problem_in, question

_RUN = "open('run', 'w')"
_FILES = {
    "train.py": _RUN,
    "needs/__init__.py": f"{_RUN}; import no_such_package",
    "needs/train.py": _RUN,
    "raises/__init__.py": f"{_RUN}; raise RuntimeError('mine')",
    "raises/__main__.py": _RUN,
    "without_main/__init__.py": _RUN,
    "namespace/inner/train.py": _RUN,
    "namespace/inner/__main__.py": _RUN,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("script", "is_found"),
    [
        ("train", True),
        ("needs.train", True),
        ("raises", True),
        ("namespace.inner", True),
        ("namespace.inner.train", True),
        ("json.tool", True),
        ("without_main", False),
        ("namespace", False),
        ("needs.none", False),
        ("none.train", False),
        ("train.py", False),
        (".needs", False),
        ("needs.", False),
    ],
)
def test_a_module_is_found_and_not_run(folder: Path, script: str, is_found: bool) -> None:
    words = [sys.executable, "-m"]
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        input=json.dumps(question(script, words, {})),
        cwd=folder, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer.get("script") is is_found, answer
    problem = problem_in({**answer, "torch": True}, script, words)
    assert (problem is None) == is_found
    assert problem is None or "is not found there by" in problem[0]
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("before", "lacks"),
    [
        ([], ()),
        (["env", "--unset=RANK"], ("RANK",)),
        (["env", "--unset=RANK", "--unset=MASTER_PORT", "--unset=GLOO_SOCKET_IFNAME"],
         ("RANK", "MASTER_PORT")),
        (["env", "--ignore-environment"], TOLD),
    ],
)  # fmt: skip
def test_a_command_that_does_not_pass_on_the_environment_is_told(
    folder: Path, before: list[str], lacks: tuple[str, ...]
) -> None:
    """A container's command passes on what it is told to; its script would not find its peers."""
    words = [*before, sys.executable]
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        input=json.dumps(question("train.py", words, {})),
        cwd=folder, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    problem = problem_in({**json.loads(done.stdout), "torch": True}, "train.py", words)
    if not lacks:
        assert problem is None
    else:
        assert problem is not None and f"does not pass on {', '.join(lacks)}: " in problem[0]


@pytest.mark.parametrize("said", ["RANK", 7, {"RANK": 1}, None, ["PATH", ["RANK"]]])
def test_an_answer_of_another_form_names_no_variable(said: object) -> None:
    answer = {"script": True, "torch": True, "untold": said}
    assert problem_in(answer, "train.py", ["python3"]) is None


_EXTENDED = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)"


@pytest.mark.parametrize(
    ("script", "is_found"),
    [
        ("extended.train", True),
        ("extended.inner.train", True),
        ("extended.inner", True),
        ("extended.none", False),
        ("whole.train", False),
    ],
)
def test_a_package_that_extends_its_path_has_folders_elsewhere(
    tmp_path: Path, script: str, is_found: bool
) -> None:
    files = {
        "here/extended/__init__.py": _EXTENDED,
        "here/extended/inner/__init__.py": _EXTENDED,
        "here/whole/__init__.py": "",
        "elsewhere/extended/__init__.py": _EXTENDED,
        "elsewhere/extended/train.py": "",
        "elsewhere/extended/inner/__init__.py": _EXTENDED,
        "elsewhere/extended/inner/__main__.py": "",
        "elsewhere/extended/inner/train.py": "",
        "elsewhere/whole/train.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    elsewhere = {"PYTHONPATH": str(tmp_path / "elsewhere")}
    words, here = [sys.executable, "-m"], tmp_path / "here"
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        input=json.dumps(question(script, words, elsewhere)),
        cwd=here, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout).get("script") is is_found
    # Python itself is of the same opinion.
    ran = subprocess.run(
        [*words, script], cwd=here, env={**os.environ, **elsewhere}, check=False, timeout=60
    )
    assert (ran.returncode == 0) == is_found
