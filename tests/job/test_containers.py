"""A script in a container of podman's ends with the program that started it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.job.test_script import spec
from tests.job.test_script_end import running
from tests.podman import containers, in_a_container, remove

pytestmark = pytest.mark.network  # root, and podman's own files on this machine

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("runs", flush=True)
time.sleep(600)
"""


def test_podman_forgets_a_container_whose_script_did_not_end_when_asked(tmp_path: Path) -> None:
    script, name = tmp_path / "script.py", f"placewire-test-{tmp_path.parent.name}-stubborn"
    script.write_text(STUBBORN)
    of = spec(script, python=in_a_container(tmp_path, name))
    try:
        with running(of, tmp_path, end_seconds=1.0) as program:
            program.await_line("runs")
            assert name in containers()
            program.process.terminate()
            program.finish()
        listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True)
        assert str(script) not in listed.stdout
        assert name not in containers("--all")
    finally:
        remove(name)
