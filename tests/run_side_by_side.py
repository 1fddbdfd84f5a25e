"""`make test`: what needs a quiet machine, and all else beside it on what that leaves.

Tests marked `network` or `timed` measure rates and times and wait for limits: they must not be
held up, and most of the time they use no processor, so they run in two lanes. One is for those that
make a lab: one at a time, for what a lab sets is the machine's, and with temporary files of their
own, for they look at what is left there. The others, in two halves, run in the idle scheduling
class, in sessions of the least weight: whenever one of the first wants a core it has it. The first
lane's output is seen at once, that of the others after it. Ctrl-C ends all, each with its own
clearing up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

INTERRUPTED = 130
# About half of what neither the network nor times are looked at in.
HALF = "tests/optimizer"
_POLL_SECONDS = 0.2


def run_side_by_side(first: Sequence[str], second: Sequence[str], *idle: Sequence[str]) -> int:
    """All commands at once; 0, or the exit status of one that failed. What `first` writes is seen
    at once, what the others write in their order from the end of `first` on."""
    with ExitStack() as stack:
        apart = stack.enter_context(tempfile.TemporaryDirectory())
        kept = [stack.enter_context(_Said()) for _ in range(1 + len(idle))]
        running = [_start(first, None), _start(second, kept[0].file, TMPDIR=apart)]
        running += [
            _start(command, said.file, idle=True)
            for command, said in zip(idle, kept[1:], strict=True)
        ]
        try:
            running[0].wait()
            for process, said in zip(running[1:], kept, strict=True):
                while process.poll() is None:
                    said.show()
                    time.sleep(_POLL_SECONDS)
                said.show()
        except KeyboardInterrupt:
            _interrupt(running)
            for said in kept:
                said.show()
            return INTERRUPTED
    return next((process.returncode for process in running if process.returncode), 0)


class _Said:
    """What a command writes, kept until it is shown."""

    def __enter__(self) -> _Said:
        self.file = tempfile.TemporaryFile(prefix="placewire-tests-")
        self._shown = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def show(self) -> None:
        """What is new; the command goes on writing at the file's own position."""
        new = os.pread(self.file.fileno(), 1 << 24, self._shown)
        self._shown += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.flush()


def _start(
    command: Sequence[str], output: IO[bytes] | None, *, idle: bool = False, **environment: str
) -> subprocess.Popen[bytes]:
    # A session of its own: the terminal's Ctrl-C comes here alone, and is passed on once.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        env=os.environ | environment,
    )  # fmt: skip
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


def main() -> int:
    pytest = [sys.executable, "-m", "pytest", "-q"]
    others = [*pytest, "-m", "not (network or timed or lab)"]
    print("tests of the network and of times; the others run beside and are shown last", flush=True)
    return run_side_by_side(
        [*pytest, "-m", "(network or timed) and not lab"],
        [*pytest, "-m", "lab"],
        [*others, HALF],
        [*others, f"--ignore={HALF}"],
    )


if __name__ == "__main__":
    sys.exit(main())
