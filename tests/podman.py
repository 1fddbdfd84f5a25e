"""Containers of podman's for tests: with this machine's /usr, and no image."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_LONGEST_SECONDS = 300


def in_a_container(folder: Path, name: str) -> list[str]:
    """What stands before a script of this folder to run it in a container, by the system's Python.
    Skips the test where podman can run none."""
    if isinstance(runs := _runs(), str):
        pytest.skip(runs)
    root = folder / f"root of {name}"
    _make_root(root)
    seen = ["--volume", f"{folder}:{folder}:ro", "--env-host", "--network", "host"]
    return [*runs, "--name", name, *seen, "--rootfs", str(root), "python3"]


def containers(*options: str) -> list[str]:
    """The names of those that podman lists."""
    command = ["podman", "ps", *options, "--format", "{{.Names}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


def remove(*names: str) -> None:
    """Ends and removes those of them that there are, if any: a test that was skipped has none."""
    if shutil.which("podman"):
        subprocess.run(["podman", "rm", "--force", "--ignore", *names], capture_output=True)


def _make_root(root: Path) -> None:
    for name in ("proc", "dev", "sys", "tmp", "etc", "run", "usr"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")


@functools.cache
def _runs() -> tuple[str, ...] | str:
    """The words that run a container here, or why there are none."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    common = ["--rm", "--init", "--volume", "/usr:/usr:ro"]
    # podman asks for higher ones, which a machine may refuse root.
    common += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        _make_root(root)
        said = ""
        for runtime in ([], ["--runtime", "runc"]):
            words = ("podman", *runtime, "run", *common)
            done = subprocess.run(
                [*words, "--rootfs", str(root), "python3", "-c", ""],
                capture_output=True, text=True, timeout=_LONGEST_SECONDS,
            )  # fmt: skip
            if done.returncode == 0:
                return words
            said = (done.stderr.strip().splitlines() or [said])[-1]
    return f"podman runs no container here: {said}"
