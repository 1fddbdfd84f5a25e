"""A script's interpreter may lack all but torch, and may run in a root of its own: its collectives
are cut all the same, or the job says that they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.specification import Started
from tests.job.test_script import finish, spec, start
from tests.job.test_script_end import running
from tests.paths import ROOT
from tests.torch_alone import torch_alone

pytestmark = pytest.mark.slow
PARTS = (0.7, 0.3)
SENDS = """
import importlib.util, os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(200_000)
dist.all_reduce(x)
assert (x == dist.get_world_size()).all()
groups = sys.modules["placewire_every_nic"]._KEPT[-1]._groups if CUT else {}
there = [name for name in ("numpy", "pydantic", "placewire") if importlib.util.find_spec(name)]
print(os.path.isdir(HIDDEN), len(next(iter(groups.values()), [])), there)
dist.destroy_process_group()
"""
# Runs what follows in a root of its own, which is gone with it: this machine's, but for folders
# that it hides there. It shares neither mounts nor processes with this machine.
IN_A_ROOT = """
set -e
mount --rbind / "$0"
for folder in $HIDE; do mount -t tmpfs none "$0$folder"; done
exec chroot "$0" "$@"
"""


def in_a_root(root: Path, *hidden: str) -> list[str]:
    root.mkdir()
    unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["env", f"HIDE={' '.join(hidden)}", *unshared, "sh", "-c", IN_A_ROOT, str(root)]


def ran(
    folder: Path, *, cut: bool = True, module: str = "", **more: Any
) -> tuple[set[str], tuple[str, ...]]:
    """What the two processes printed, and the notes of the start."""
    script = folder / "script.py"
    script.write_text(f"HIDDEN, CUT = {str(ROOT / 'job')!r}, {cut}\n{SENDS}")
    of = spec(Path(module) if module else script, processes=2, rail_parts=PARTS, **more)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    status, events, printed = finish(start(of, folder, PYTHONPATH=path))
    assert status == 0, (events, printed)
    (notes,) = [event.notes for event in events if isinstance(event, Started)]
    return {line.split(" ", 1)[1] for line in printed}, notes


def test_torch_alone_is_enough(tmp_path: Path) -> None:
    printed, notes = ran(tmp_path, python=[str(torch_alone(tmp_path / "own"))])
    assert printed == {"True 2 []"}
    assert notes == ("2 processes; collectives from 256 KiB on are cut: a 70%, b 30%",)


@pytest.mark.parametrize("words", [["-m"], ["-m", "cProfile", "-o", os.devnull]])
def test_a_module_s_collectives_are_cut_and_those_of_a_script_that_a_module_runs(
    tmp_path: Path, words: list[str]
) -> None:
    module = "script" if words == ["-m"] else ""
    printed, notes = ran(tmp_path, module=module, python=[sys.executable, *words])
    (line,) = printed
    assert line.startswith("True 2 ")
    assert notes == ("2 processes; collectives from 256 KiB on are cut: a 70%, b 30%",)


@pytest.mark.network
def test_in_a_root_that_has_nothing_of_ours(tmp_path: Path) -> None:
    python = [*in_a_root(tmp_path / "root", str(ROOT / "job")), sys.executable, "-P"]
    printed, notes = ran(tmp_path, python=python)
    (line,) = printed
    assert line.startswith("True 2 "), "an empty folder is mounted over ours"
    assert notes == ("2 processes; collectives from 256 KiB on are cut: a 70%, b 30%",)


@pytest.mark.network
def test_in_a_root_without_proc_nothing_is_cut_and_the_job_says_so(tmp_path: Path) -> None:
    hidden = (str(ROOT / "job"), "/proc")
    python = [*in_a_root(tmp_path / "root", *hidden), sys.executable, "-P"]
    printed, notes = ran(tmp_path, cut=False, python=python)
    (line,) = printed
    assert line.startswith("True 0 ")
    assert "none is cut" in notes[-1] and "needs /proc" in notes[-1]
    assert not any("are cut" in note for note in notes)


@pytest.mark.network
def test_whoever_ends_the_program_ends_a_root_s_processes(tmp_path: Path) -> None:
    script, python = tmp_path / "script.py", in_a_root(tmp_path / "root", str(ROOT / "job"))
    script.write_text("import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    of = spec(script, python=[*python, sys.executable])
    # The first process of a pid namespace ignores SIGTERM, and is killed after that time.
    with running(of, tmp_path, end_seconds=1.0) as program:
        program.await_line("runs")
        program.process.terminate()
        program.finish()
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(script) not in listed
