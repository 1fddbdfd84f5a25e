"""Compiled code that is kept from one run to the next matches the present sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from placewire.optimizer.kernels import compiled
from placewire.optimizer.kernels.code_folder import code_folder
from tests.paths import ROOT

CALLEE = """
from {package}.compiled import compiled

@compiled
def inner():
    return {value}
"""
CALLER = """
from {package}.compiled import compiled
from {package}.callee import inner

@compiled
def outer():
    return inner()

print(outer(), sum(outer.stats.cache_hits.values()))
"""


def test_a_change_of_a_callee_in_another_file_is_seen(tmp_path):
    package = "kernels_of_a_test"
    folder = tmp_path / package
    folder.mkdir()
    shutil.copy(str(compiled.__file__), folder / "compiled.py")
    (folder / "__init__.py").touch()
    (folder / "caller.py").write_text(CALLER.format(package=package))

    def run(value):
        (folder / "callee.py").write_text(CALLEE.format(package=package, value=value))
        environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
        # Bytecode is cached by the second; only numba's cache is of interest here.
        command = [sys.executable, "-B", "-m", f"{package}.caller"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=True
        )
        return done.stdout.split()

    assert run(1) == ["1", "0"]
    assert run(1) == ["1", "1"]
    assert run(2)[0] == "2"


VERSIONS = """
import sys, time
from numba.core.caching import IndexDataCacheFile
from {package}.compiled import compiled

read = IndexDataCacheFile._load_index

def read_slowly(file):
    found = read(file)
    time.sleep(0.5)  # others have read the same by then
    return found

IndexDataCacheFile._load_index = read_slowly

@compiled
def same(x):
    return x

same(1)  # compiles what all versions need
time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
for value in map(eval, sys.argv[2:]):
    same(value)
print(sum(same.stats.cache_hits.values()))
"""


def test_what_several_processes_compile_at_once_is_all_kept(tmp_path):
    package = "kernels_of_a_test"
    folder = tmp_path / package
    folder.mkdir()
    shutil.copy(str(compiled.__file__), folder / "compiled.py")
    (folder / "__init__.py").touch()
    (folder / "versions.py").write_text(VERSIONS.format(package=package))
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, "-m", f"{package}.versions"]
    values = ["1.0", "(1,)", "(1.0,)", "(1, 1.0)"]

    def started(at, *arguments):
        return subprocess.Popen(
            [*command, str(at), *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )

    at = time.time() + 5.0
    together = [started(at, value) for value in values]
    assert [one.wait(900) for one in together] == [0] * len(values)
    found, _ = started(0, *values).communicate(timeout=900)
    assert found == f"{1 + len(values)}\n"


def test_code_is_kept_in_a_folder_of_this_user_alone(tmp_path):
    folder, why = code_folder(tmp_path, str(tmp_path / "kept"), "digest")
    assert folder is not None and (folder, why) == (tmp_path / "kept" / "digest", "")
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert code_folder(tmp_path, str(tmp_path / "kept"), "digest") == (folder, "")


def _of_another_user(folder):
    os.chown(folder, 65_534, 65_534)


def _open_to_others(folder):
    folder.chmod(0o777)


def _a_link(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _a_file(folder):
    folder.rmdir()
    folder.touch()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            _of_another_user, "another user's (65534)",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away"),
        ),
        (_open_to_others, "other users may write to it"),
        (_a_link, "it is no folder"),
        (_a_file, "File exists"),
    ],
)  # fmt: skip
def test_what_another_user_may_have_written_is_not_read(tmp_path, change, said):
    folder, _ = code_folder(tmp_path, str(tmp_path / "kept"), "digest")
    change(folder)
    found, why = code_folder(tmp_path, str(tmp_path / "kept"), "digest")
    assert found is None and said in why and str(folder) in why


def test_without_a_folder_code_is_compiled_and_that_is_said(tmp_path):
    package = "kernels_of_a_test"
    folder = tmp_path / package
    folder.mkdir()
    shutil.copy(str(compiled.__file__), folder / "compiled.py")
    (folder / "__init__.py").touch()
    (folder / "callee.py").write_text(CALLEE.format(package=package, value=1))
    (folder / "caller.py").write_text(CALLER.format(package=package))
    in_its_place = tmp_path / "a file"
    in_its_place.touch()
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(in_its_place),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")]),
    }
    command = [sys.executable, "-B", "-m", f"{package}.caller"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "0"]
    assert "compiled code is not kept" in done.stderr and str(in_its_place) in done.stderr
    assert "Traceback" not in done.stderr
