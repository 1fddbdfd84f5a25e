"""`make test`: what needs a quiet machine, and all else beside it on what that leaves.

Tests marked `network` or `timed` measure rates and times and wait for limits: they must not be
held up, and most of the time they use no processor, so they run in three lanes. Two have those that
make a lab, with temporary files of their own, for they look at what is left there. All else runs in
the idle scheduling class, in sessions of the least weight: whenever one of the first wants a core
it has it. The first lane's output is seen at once, that of the others after it. Ctrl-C ends all,
each with its own clearing up.

Tests marked `thorough` are left out: `make test-thorough` runs them. The last lines say what was
skipped, and why.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.skipped import VARIABLE, summary

INTERRUPTED = 130
_POLL_SECONDS = 0.2
# Of the optimizer's tests those that run after all others', which would end before them.
CAPTURES = "tests/optimizer/capture"


@dataclass(frozen=True)
class Lane:
    """apart: with a folder of its own for temporary files."""

    command: Sequence[str]
    apart: bool = False
    idle: bool = False


def run_side_by_side(*lanes: Lane) -> int:
    """All commands at once; 0, or the exit status of one that failed. What the first writes is seen
    at once, what the others write in their order from its end on."""
    with ExitStack() as stack:
        kept = [stack.enter_context(_Said()) for _ in lanes[1:]]
        running = []
        for lane, said in zip(lanes, (None, *kept), strict=True):
            folder = stack.enter_context(tempfile.TemporaryDirectory()) if lane.apart else None
            running.append(_start(lane, said.file if said else None, folder))
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


def _start(lane: Lane, output: IO[bytes] | None, temporary: str | None) -> subprocess.Popen[bytes]:
    # A session of its own: the terminal's Ctrl-C comes here alone, and is passed on once.
    process = subprocess.Popen(
        lane.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True, env=os.environ | ({"TMPDIR": temporary} if temporary else {}),
    )  # fmt: skip
    if lane.idle:
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
    print("tests of the network and of times; the others run beside and are shown last", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        skipped = Path(folder) / "skipped"
        os.environ[VARIABLE] = str(skipped)
        status = run_side_by_side(*_lanes())
        print(summary(skipped), flush=True)
    return status


def _lanes() -> tuple[Lane, ...]:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skipped", "-m"]
    timed = "(network or timed) and not thorough"
    rest = "not (network or timed or lab or thorough)"
    optimizer, controller = "tests/optimizer", "tests/controller"
    labs, apply = "tests/end_to_end", "tests/end_to_end/test_apply.py"
    others = [
        str(one) for one in Path("tests").glob("[a-z]*") if one.is_dir() or "test_" in one.name
    ]
    others.remove(optimizer)
    elsewhere = [f"--ignore={folder}" for folder in (optimizer, controller, labs)]
    return (
        Lane([*pytest, timed, *elsewhere]),
        Lane([*pytest, "lab and not thorough", apply], apart=True),
        # Over SSH a rank is known by its process: all tests of that are one after the other.
        Lane([*pytest, timed, labs, controller, f"--ignore={apply}"], apart=True),
        Lane(["make", "--no-print-directory", "static"], idle=True),
        Lane([*pytest, rest, optimizer, f"--ignore={CAPTURES}"], idle=True),
        Lane([*pytest, rest, *sorted(others), CAPTURES], idle=True),
    )


if __name__ == "__main__":
    sys.exit(main())
