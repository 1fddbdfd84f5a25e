"""Is a file that ranks could not begin from told before the network is shaped?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import placewire.job.placed.initial_state_look as module
from placewire.job.contract.look import Answer
from placewire.job.contract.specification import StateSpec
from placewire.job.placed.initial_state_look import answer_to
from placewire.job.placed.tensor_file import DTYPES
from placewire.job.placed.tensor_header import ELEMENT_BYTES
from tests.job.test_checkpoint_look import WITHOUT_CAPABILITIES
from tests.job.test_values_of_torch import _Runs
from tests.job.value_files import as_distributed, as_folder, as_safetensors, as_state_dict

PROGRAM = [sys.executable, "-m", "placewire.job.placed.initial_state_look"]
VALUES = {"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(4)}
WRITERS: list[Callable[[Any, Path], Path]] = [as_safetensors, as_state_dict, as_distributed]


def run(file: Path, words: list[str], **asked: Any) -> Answer:
    done = subprocess.run(
        words, input=StateSpec(file=str(file), **asked).model_dump_json().encode(),
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return Answer.model_validate_json(done.stdout)


def told(file: Path, words: list[str] | None = None, **asked: Any) -> str:
    """words: of a program that looks at the file; by default the present process does."""
    answer = run(file, words, **asked) if words else answer_to(StateSpec(file=str(file), **asked))
    problem = answer.problem
    assert problem is not None and "safetensors" in problem.remedy
    assert problem.what.startswith(f"job.state.file {file} cannot be loaded: ")
    return problem.what


@pytest.mark.parametrize("write", WRITERS)
def test_what_ranks_could_read_is_no_problem(tmp_path: Path, write: Any) -> None:
    file = write({**VALUES}, tmp_path / "values")
    before = set(tmp_path.rglob("*"))
    assert run(file, PROGRAM) == Answer()
    assert answer_to(StateSpec(file=str(file), prefix="fc.")) == Answer()
    problem = answer_to(StateSpec(file=str(file), prefix="net.")).problem
    assert problem is not None and "no name in it begins with the prefix net." in problem.what
    assert set(tmp_path.rglob("*")) == before


def test_what_is_no_file_of_tensors_is_told(tmp_path: Path) -> None:
    assert "No such file" in told(tmp_path / "missing")
    text, folder = tmp_path / "text", tmp_path / "folder"
    text.write_text("no tensors at all")
    assert "is no file of tensors: its header would have" in told(text)
    folder.mkdir()
    assert "no file in this folder is called .metadata or *.safetensors" in told(folder)
    assert "it has no tensor" in told(as_safetensors({}, tmp_path / "none"))


@pytest.mark.parametrize("write", [as_safetensors, as_folder])
def test_what_the_ranks_user_cannot_read_is_told(tmp_path: Path, write: Any) -> None:
    file = write(VALUES, tmp_path / "values")
    mode = file.stat().st_mode
    file.chmod(0o311)
    words = [*WITHOUT_CAPABILITIES, *PROGRAM] if os.geteuid() == 0 else PROGRAM
    assert "Permission denied" in told(file, words)
    file.chmod(mode)
    assert run(file, words) == Answer()


def test_what_was_cut_off_is_told(tmp_path: Path) -> None:
    of_torch = as_state_dict(VALUES, tmp_path / "values.pt")
    os.truncate(of_torch, of_torch.stat().st_size // 2)
    assert "is no whole file of torch.save" in told(of_torch)
    folder = as_distributed({**VALUES}, tmp_path / "values")
    (shard,) = folder.glob("*.distcp")
    os.truncate(shard, shard.stat().st_size // 2)
    assert f"{shard} has " in told(folder)
    shard.unlink()
    assert f"lacks {shard.name}" in told(folder)
    file = as_safetensors(VALUES, tmp_path / "values")
    os.truncate(file, file.stat().st_size - 1)
    assert "its tensors have 64 bytes, and the file has 63 for them" in told(file)


def test_a_file_that_would_run_code_is_told_and_runs_none(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    file = as_state_dict({**VALUES, "epoch": _Runs(mark)}, tmp_path / "values.pt")
    assert "needs posix.mkdir, so that to load it could run code" in told(file)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (as_state_dict, "has no entry net; it is a dict with model (a dict with 2 tensors)"),
        (as_distributed, "no name in it begins with net., as those of the entry net would"),
    ],
)
def test_an_entry_that_is_not_there_is_told(tmp_path: Path, write: Any, words: str) -> None:
    file = write({"model": VALUES}, tmp_path / "values")
    assert answer_to(StateSpec(file=str(file), entry="model")) == Answer()
    assert words in told(file, entry="net")


def test_safetensors_are_looked_at_without_torch(tmp_path: Path) -> None:
    looked = (
        "import sys, placewire.job.placed.initial_state_look as look; look.main(); "
        "sys.exit('torch' in sys.modules)"
    )
    words = [sys.executable, "-c", looked]
    assert run(as_folder(VALUES, tmp_path / "values"), words) == Answer()
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ELEMENT_BYTES


def test_a_file_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    slow = (
        "import time, placewire.job.placed.initial_state_look as look; look._SECONDS = 0.1; "
        "look.answer_to = lambda asked: time.sleep(600); look.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", slow],
        input=StateSpec(file=str(tmp_path)).model_dump_json().encode(),
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr == f"{tmp_path} does not answer within 0.1 s\n".encode()
    assert module._SECONDS > 1


def test_a_name_of_any_length_fits_an_answer(tmp_path: Path) -> None:
    folder = as_folder({"a" * 100_000: torch.ones(1)}, tmp_path / "values")
    as_safetensors({"a" * 100_000: torch.ones(1)}, folder / "twice")
    problem = answer_to(StateSpec(file=str(folder))).problem
    assert problem is not None and len(problem.what) == 20_000
