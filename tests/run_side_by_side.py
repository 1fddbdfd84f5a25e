"""`make test`: what needs a quiet machine, and all else beside it on what that leaves.

Tests marked `network` or `timed` measure rates and times and wait for limits: they must not be
held up, and most of the time they use no processor. The others run in the idle scheduling class, in
a session of their own of the least weight: whenever one of the first wants a core it has it. Their
output comes last. Ctrl-C ends both, each with its own clearing up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

INTERRUPTED = 130
_POLL_SECONDS = 0.2


def run_side_by_side(first: Sequence[str], beside: Sequence[str]) -> int:
    """Both commands at once, `beside` in the idle class; 0, or the exit status of one that failed.
    What `first` writes is seen at once, what `beside` writes from the end of `first` on."""
    with tempfile.NamedTemporaryFile(prefix="beside-") as said, Path(said.name).open("rb") as lines:
        running = [_start(beside, said, idle=True), _start(first, None)]
        try:
            running[1].wait()
            while running[0].poll() is None:
                _show(lines)
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            _interrupt(running)
            return INTERRUPTED
        finally:
            _show(lines)
    return next((process.returncode for process in running if process.returncode), 0)


def _start(
    command: Sequence[str], output: IO[bytes] | None, *, idle: bool = False
) -> subprocess.Popen[bytes]:
    # A session of its own: the terminal's Ctrl-C comes here alone, and is passed on once.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    if idle:
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        # Where the kernel weighs sessions (sched_autogroup_enabled), priorities only count within
        # one, and what the first starts as daemons has sessions of its own.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text("19")
    return process


def _interrupt(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Once for each time that somebody insists."""
    while left := [process for process in running if process.poll() is None]:
        for process in left:
            process.send_signal(signal.SIGINT)
        try:
            for process in left:
                process.wait()
        except KeyboardInterrupt:
            continue


def _show(lines: IO[bytes]) -> None:
    sys.stdout.buffer.write(lines.read())
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", "-q", *arguments]
    print("tests of the network and of times; the others run beside and are shown last", flush=True)
    quiet = "network or timed"
    return run_side_by_side([*pytest, "-m", quiet], [*pytest, "-m", f"not ({quiet})"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
