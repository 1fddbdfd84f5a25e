"""A container of podman's that a run's script is in ends with the run, however the program that
started it was killed. The server's shell is this machine's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from placewire.controller.launch.own_runs import Run, ending_strays, finding, found
from tests.controller.launch.test_own_runs import HereServer
from tests.job.test_script import spec
from tests.podman import containers, in_a_container, remove

pytestmark = pytest.mark.network  # root, and podman's own files on this machine

# Becomes the real program that starts a script.
BECOMES_A_RANK = """
import os, sys
print("runs", flush=True)
os.execv(sys.executable, [sys.executable, "-m", "placewire.job", {spec!r}])
"""
GOES_ON = "import time\nprint('in the container', flush=True)\ntime.sleep(600)\n"
_LONGEST_SECONDS = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HereServer]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    made = HereServer(temporary)
    yield made
    made.close()


@contextmanager
def container(words: list[str], script: Path, **environment: str) -> Iterator[None]:
    """A container that somebody runs by hand."""
    with subprocess.Popen(
        [*words, str(script)],
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as client:  # fmt: skip
        try:
            assert client.stdout is not None and client.stdout.readline() == b"in the container\n"
            yield
        finally:
            client.kill()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[list[str]]:
    made = [f"placewire-test-{os.getpid()}-{which}" for which in ("ours", "theirs")]
    yield made
    remove(*made)


def await_absence(name: str) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while name in containers("--all"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_container_ends_with_its_run_whose_program_was_killed(
    server: HereServer, tmp_path: Path, names: list[str]
) -> None:
    """That of another run, which somebody started by hand, goes on."""
    ours, theirs = names
    script, program = tmp_path / "script.py", tmp_path / "program.py"
    script.write_text(GOES_ON)
    (tmp_path / "spec.json").write_text(
        spec(script, python=in_a_container(tmp_path, ours)).model_dump_json()
    )
    program.write_text(BECOMES_A_RANK.format(spec=str(tmp_path / "spec.json")))
    other = {"PLACEWIRE_RUN": f"{Run('rank').identifier}:rank:1:/tmp/x"}
    with container(in_a_container(tmp_path, theirs), script, **other):
        folder = server.begin(program, Run("rank"), Path(sys.executable))
        output = server.started[0].stdout
        assert output is not None and any(b"in the container" in line for line in output)
        (left,) = (one for one in found(server.run(finding())[1]) if one.folder == folder)
        os.kill(left.pid, signal.SIGKILL)
        await_absence(ours)
        assert server.started[0].wait(_LONGEST_SECONDS) == 128 + signal.SIGKILL
        assert not Path(folder).exists()
        assert theirs in containers()


def test_a_container_of_whoever_copied_a_run_s_environment_goes_on(
    server: HereServer, tmp_path: Path, names: list[str]
) -> None:
    """As for debugging: podman runs in that person's shell. It is ended once nobody has it."""
    run, name, script = Run("rank"), names[0], tmp_path / "script.py"
    script.write_text(GOES_ON)
    copied = {"PLACEWIRE_RUN": f"{run.identifier}:rank:1:/tmp/x"}
    with container(in_a_container(tmp_path, name), script, **copied):
        server.run(ending_strays(run))
        assert name in containers()
    assert name in containers(), "podman was killed, and its container was not"
    server.run(ending_strays(run))
    await_absence(name)
