"""Compiled code that is kept from one run to the next is the code of the sources as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from optimizer.kernels import compiled

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
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.split()

    assert run(1) == ["1", "0"]
    assert run(1) == ["1", "1"]
    assert run(2)[0] == "2"
