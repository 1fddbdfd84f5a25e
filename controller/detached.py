"""Runs a command in the background: `python -m placewire.controller.detached FILE WORDS...`.

FILE takes what the command prints (controller/records/detached_output.py). It is open already, as
standard output, with its lock held. The command is this process's child, which passes signals on to
it, and writes down how it ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import IO

from placewire.controller.records.detached_output import (
    first_line,
    has_begun,
    last_line,
    new_output,
)
from placewire.controller.records.run_log import RunLog
from placewire.visible import visible

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_LINE_BYTES = 65_536
# What the command printed is there by then, unless something that it started prints on.
_REST_SECONDS = 2.0
_BEGIN_SECONDS, _LOOK_SECONDS = 60.0, 0.05


def start(words: list[str], folder: Path, plan_name: str) -> Path:
    """Starts the command in a session of its own, so that no terminal's end is its end. Returns
    the file of its output, once the command is begun. Raises OSError, also where it does not
    begin."""
    path, descriptor = new_output(folder, plan_name)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "placewire.controller.detached", str(path), *words],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    # It may outlive this process. A Popen that is dropped while its process runs warns of that.
    end = threading.Thread(target=process.wait, daemon=True)
    end.start()
    until = time.monotonic() + _BEGIN_SECONDS
    while not has_begun(path) and end.is_alive() and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    if not has_begun(path):
        raise OSError(0, "the command did not begin: is the disk full?", str(path))
    return path


def main() -> None:
    """The lock is this process's and the command's: it holds as long as either of them lives."""
    words, output = sys.argv[2:], sys.stdout.fileno()
    lock = os.dup(output)
    heard: list[int] = []
    child: list[subprocess.Popen[bytes]] = []

    def passed_on(number: int, _: FrameType | None) -> None:
        if child:
            child[0].send_signal(number)
        else:
            heard.append(number)

    for number in _SIGNALS:
        signal.signal(number, passed_on)
    with os.fdopen(output, "w+", buffering=1, encoding="utf-8", errors="backslashreplace") as file:
        log = RunLog(file, Path(sys.argv[1]))
        child.append(
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(lock,)
            )
        )
        log.write_line(first_line(child[0].pid, words))
        for early in heard:
            child[0].send_signal(early)
        pipe = child[0].stdout
        assert pipe is not None
        reader = threading.Thread(target=_written_down, args=(pipe, log), daemon=True)
        reader.start()
        status = child[0].wait()
        reader.join(_REST_SECONDS)
        log.write_line(last_line(status if status >= 0 else 128 - status))


def _written_down(pipe: IO[bytes], log: RunLog) -> None:
    for line in iter(lambda: pipe.readline(_LONGEST_LINE_BYTES), b""):
        log.write_line(visible(line.decode(errors="backslashreplace").rstrip("\n")))


if __name__ == "__main__":
    main()
