"""Commands of this machine, run to their end; and files of /proc/sys."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from placewire.controller.errors import PlacewireError, UsageError

NAMESPACE_DIRECTORY = Path("/run/netns")
MARKER = "PLACEWIRE_LAB"
_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ss": "iproute2",
    "ethtool": "ethtool",
    "iperf3": "iperf3",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ovsdb-tool": "openvswitch-switch",
    "ovsdb-server": "openvswitch-switch",
    "ovs-vswitchd": "openvswitch-switch",
    "ovs-vsctl": "openvswitch-switch",
    "ovs-ofctl": "openvswitch-switch",
}
_TIMEOUT_SECONDS = 30


def require_root_and_programs() -> None:
    if os.geteuid() != 0:
        raise UsageError("a lab makes network namespaces", remedy="run this as root")
    missing = sorted({package for name, package in _PROGRAMS.items() if not shutil.which(name)})
    if missing:
        raise UsageError(
            "programs that the lab is made of are missing",
            remedy=f"apt-get install {' '.join(missing)}",
        )


def run(
    argv: Sequence[str], *, text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Standard output. Raises PlacewireError with the command and what it said."""
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
    """program: ip or tc, whose -batch stops at the first line that fails."""
    inside = [] if namespace is None else ["-n", namespace]
    run([program, *inside, "-batch", "-"], text="\n".join(lines) + "\n")


def inside(namespace: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs argv in the namespace; nsenter becomes argv, with the same pid."""
    return ["nsenter", f"--net={NAMESPACE_DIRECTORY / namespace}", "--", *argv]


def namespace_exists(namespace: str) -> bool:
    return (NAMESPACE_DIRECTORY / namespace).exists()


def marked_environment(lab: str, **more: str) -> dict[str, str]:
    """The environment of every process of a lab: children inherit whose they are."""
    return {**os.environ, MARKER: lab, **more}
