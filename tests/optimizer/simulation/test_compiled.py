"""Compiled code that is kept from one run to the next matches the present sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from placewire.optimizer.kernels import compiled

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
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path.cwd())])
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
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path.cwd())])
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
