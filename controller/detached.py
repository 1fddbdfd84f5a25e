"""Runs a command in the background: `python -m placewire.controller.detached FILE WORDS...`.

FILE takes what the command prints (controller/records/detached_output.py). It is open already, as
standard output. The command is this process's child, which passes signals on to it, and writes down
how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from placewire.controller.records.detached_output import first_line, last_line, new_output


def start(words: list[str], folder: Path, plan_name: str) -> Path:
    """Starts the command in a session of its own, so that no terminal's end is its end. Returns
    the file of its output; raises OSError."""
    path, descriptor = new_output(folder, plan_name)
    try:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "placewire.controller.detached", str(path), *words],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    finally:
        os.close(descriptor)
    return path


def main() -> None:
    words = sys.argv[2:]
    child: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def passed_on(number: int, _: FrameType | None) -> None:
        if child:
            child[0].send_signal(number)
        else:
            early.append(number)

    for heard in (signal.SIGINT, signal.SIGTERM):
        signal.signal(heard, passed_on)
    os.write(sys.stdout.fileno(), first_line(words))
    child.append(subprocess.Popen(words))
    for number in early:
        child[0].send_signal(number)
    status = child[0].wait()
    os.write(sys.stdout.fileno(), last_line(status if status >= 0 else 128 - status))


if __name__ == "__main__":
    main()
