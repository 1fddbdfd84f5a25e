"""Takes a snapshot of another network namespace of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placewire.oracle import snapshot
from placewire.oracle.snapshot import UnreadableError

_TIMEOUT_SECONDS = 120
SOURCE = Path(snapshot.__file__)


def command(run_dir: str | None = None) -> list[str]:
    """The command that prints the snapshot of whichever network it runs in. run_dir: the folder of
    Open vSwitch's sockets; None: where its package has them."""
    return [sys.executable, "-I", str(SOURCE), *(["--run-dir", run_dir] if run_dir else [])]


def take_in(namespace: str, run_dir: str | None = None) -> dict[str, Any]:
    """The snapshot of a namespace that `ip netns` lists. Raises UnreadableError."""
    return taken_by(["ip", "netns", "exec", namespace, *command(run_dir)])


def taken_by(words: Sequence[str]) -> dict[str, Any]:
    """The snapshot that this command prints. Raises UnreadableError."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreadableError(f"no snapshot could be taken: {error}") from error
    if done.returncode != 0:
        raise UnreadableError((done.stderr or done.stdout).strip())
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise UnreadableError(f"what was printed is no snapshot: {error}") from error
    return found
