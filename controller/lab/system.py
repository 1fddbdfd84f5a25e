"""Runs commands for a lab, and builds those that run in a network namespace."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from placewire.controller.errors import PlacewireError, UsageError
from placewire.controller.own_lab import LAB_VARIABLE

NAMESPACE_DIRECTORY = Path("/run/netns")
# Needed programs, by Debian package.
_PROGRAMS = {
    "ethtool": ("ethtool",),
    "iperf3": ("iperf3",),
    "iproute2": ("ip", "tc", "ss"),
    "openvswitch-switch": ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"),
    "util-linux": ("nsenter", "setpriv"),
}
_TIMEOUT_SECONDS = 30


def require_root_and_programs() -> None:
    if os.geteuid() != 0:
        raise UsageError("a lab makes network namespaces", remedy="run this as root")
    missing = [name for name, some in _PROGRAMS.items() if not all(map(shutil.which, some))]
    if missing:
        raise UsageError(
            "programs that a lab needs are missing",
            remedy=f"apt-get install {' '.join(missing)}",
        )


def run(
    argv: Sequence[str], *, text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Returns standard output. Raises PlacewireError with the command and its complaint."""
    try:
        done = subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=None if environment is None else dict(environment),
        )
    except subprocess.TimeoutExpired as late:
        raise PlacewireError(
            f"`{shlex.join(argv)}` did not end within {_TIMEOUT_SECONDS} s", where="lab"
        ) from late
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise PlacewireError(f"`{shlex.join(argv)}` failed: {said}", where="lab")
    return done.stdout


def run_batch(program: str, namespace: str | None, lines: Sequence[str]) -> None:
    """Runs lines with `ip -batch` or `tc -batch`, which stop at the first line that fails."""
    inside = [] if namespace is None else ["-n", namespace]
    run([program, *inside, "-batch", "-"], text="\n".join(lines) + "\n")


def inside(namespace: str, argv: Sequence[str]) -> list[str]:
    """Returns what runs argv in the namespace. nsenter becomes argv, with the same pid."""
    return ["nsenter", f"--net={NAMESPACE_DIRECTORY / namespace}", "--", *argv]


def namespace_exists(namespace: str) -> bool:
    return (NAMESPACE_DIRECTORY / namespace).exists()


def marked_environment(lab: str, **more: str) -> dict[str, str]:
    """Returns the environment for a lab's processes; children inherit the mark in it."""
    return {**os.environ, LAB_VARIABLE: lab, **more}
