"""Runs `make test`: tests that need a quiet machine in four lanes, all others beside them.

Tests marked `network` or `timed` measure rates and times and wait for limits. They must not be held
up, and each waits for much of its time, so that four lanes of them run at once. Two of the four
are for tests that make a lab; each has a folder of its own for temporary files, since these tests
check what is left there. All other tests, and the static checks, run in the idle scheduling class,
in sessions of the least weight, so that a test of the first kind gets a core whenever it wants one.
The first lane's output is shown at once, that of the others after it. Ctrl-C or SIGTERM ends all
lanes, and each clears up after itself.

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
# These tests of the optimizer run in a lane of the job's, which imports torch anyhow.
CAPTURES = "tests/optimizer/capture"
APPLY = "tests/end_to_end/test_apply.py"


@dataclass(frozen=True)
class Lane:
    """apart: whether it has a folder of its own for temporary files; idle: whether it runs in the
    idle scheduling class; together: whether an interrupt goes to its children, too."""

    command: Sequence[str]
    apart: bool = False
    idle: bool = False
    together: bool = False


def run_side_by_side(*lanes: Lane) -> int:
    """Runs all commands at once; returns 0, or the exit status of one that failed. The output of
    the first is shown at once, that of the others when it has ended, in their order."""
    # A shell's background job ignores SIGINT, and its lanes would, too.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
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
            _interrupt([*zip(lanes, running, strict=True)])
            for said in kept:
                said.show()
            return INTERRUPTED
    return next((process.returncode for process in running if process.returncode), 0)


class _Said:
    """The output of a command, kept until it is shown."""

    def __enter__(self) -> _Said:
        self.file = tempfile.TemporaryFile(prefix="placewire-tests-")
        self._shown = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def show(self) -> None:
        """Shows the output that is new; the command goes on writing at the file's own position."""
        new = os.pread(self.file.fileno(), 1 << 24, self._shown)
        self._shown += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.flush()


def _start(lane: Lane, output: IO[bytes] | None, temporary: str | None) -> subprocess.Popen[bytes]:
    # In a session of its own: the terminal's Ctrl-C reaches only this process, which passes it on.
    process = subprocess.Popen(
        lane.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True, env=os.environ | ({"TMPDIR": temporary} if temporary else {}),
    )  # fmt: skip
    if lane.idle:
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        # Where the kernel weighs sessions (sched_autogroup_enabled), a priority counts only within
        # one session, and daemons that the first lanes start have sessions of their own.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text("19")
    return process


def _interrupt(running: Sequence[tuple[Lane, subprocess.Popen[bytes]]]) -> None:
    """Interrupts all that run, and again each time that the user presses Ctrl-C again."""
    while left := [(lane, one) for lane, one in running if one.poll() is None]:
        for lane, process in left:
            (os.killpg if lane.together else os.kill)(process.pid, signal.SIGINT)
        try:
            for _, process in left:
                process.wait()
        except KeyboardInterrupt:
            continue


def main() -> int:
    print("tests of the network and of times; the others run beside and are shown last", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        skipped = Path(folder) / "skipped"
        os.environ[VARIABLE] = str(skipped)
        status = run_side_by_side(*lanes())
        print(summary(skipped), flush=True)
    return status


def lanes() -> tuple[Lane, ...]:
    """Each test is in one of them, in which its marks are looked for."""
    # The profile draws the same examples each time: a red run is a change's doing, not chance's.
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skipped"]
    pytest += ["--hypothesis-profile=ci", "--durations=8", "--durations-min=10", "-m"]
    timed = [*pytest, "(network or timed or lab) and not thorough"]
    rest = [*pytest, "not (network or timed or lab or thorough)"]
    optimizer, controller, job = "tests/optimizer", "tests/controller", "tests/job"
    servers = [f"tests/agent/{room}" for room in ("doctor", "drivers", "network")]
    names = sorted(map(str, Path(job).glob("test_*.py")))
    early = [name for name in names if Path(name).name < "test_i"]
    others = [
        str(one) for one in Path("tests").glob("[a-z]*") if one.is_dir() or "test_" in one.name
    ]
    apart = (optimizer, controller, job)
    return (
        # These fork themselves for each question to a server, and so must not import torch.
        Lane([*timed, *servers]),
        Lane([*timed, "tests/agent", "tests/oracle", "tests/kernel", *_without(*servers)]),
        # What a test of the job leaves is there before the lab is made, and so not taken for its.
        Lane([*timed, job, APPLY], apart=True),
        # Ranks over SSH are told apart by their processes, so that their tests run one by one.
        Lane([*timed, "tests/end_to_end", controller, *_without(APPLY)], apart=True),
        # make leaves it to the terminal to interrupt its commands.
        Lane(["make", "--no-print-directory", "static"], idle=True, together=True),
        Lane([*rest, optimizer, *_without(CAPTURES)], idle=True),
        Lane([*rest, *early, CAPTURES], idle=True),
        Lane([*rest, *(name for name in names if name not in early)], idle=True),
        Lane([*rest, *sorted(one for one in others if one not in apart)], idle=True),
        Lane([*rest, controller], idle=True),
    )


def _without(*folders: str) -> list[str]:
    return [f"--ignore={folder}" for folder in folders]


if __name__ == "__main__":
    sys.exit(main())
