"""A rank outlives the reader of what it prints, from the very moment at which that is gone; and no
reader that is there and does not read keeps it from ending."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import IO

import pytest

from placewire.job.contract.specification import StepDone, parse_rank_event

# These tests run in the idle class, which others on the machine can keep waiting for long.
PATIENCE_SECONDS = 300
PROGRAM = """
import sys, time
from placewire.job.contract.specification import StepDone
from placewire.job.supervision.events import Events
events = Events()
print("heard", flush=True)
sys.stdin.readline()
for step in range(100):
    print("the model prints", flush=True)
    sys.stdout.buffer.write(b"bytes\\n")
    sys.stdout.flush()
    print("and complains", file=sys.stderr)
    events.emit(StepDone(rank=0, step=step, seconds=0.1))
open(sys.argv[1], "w").write("done")
"""


def test_what_nobody_reads_ends_no_rank(tmp_path: Path) -> None:
    end = tmp_path / "end"
    rank = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(end)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert rank.stdin and rank.stdout and rank.stderr
    assert rank.stderr.readline() == b"heard\n", "what a model prints goes to standard error"
    rank.stdout.close()
    rank.stderr.close()
    rank.stdin.write(b"\n")
    rank.stdin.close()
    assert rank.wait(PATIENCE_SECONDS) == 0 and end.read_text() == "done"


FORGES = """
import multiprocessing, os, subprocess, sys
from placewire.job.contract.specification import StepDone
from placewire.job.supervision.events import Events
events, forged = Events(), sys.argv[1]
print(forged, flush=True)
os.write(1, forged.encode() + b"\\n")
sys.__stdout__.write(forged + "\\n"); sys.__stdout__.flush()
subprocess.run(["echo", forged])
each = "for n in 1 3 4 5 6 7 8 9; do echo $0 >&$n; done"
subprocess.run(["sh", "-c", each, forged], close_fds=False)
os.system("echo '" + forged + "' > /dev/stdout")
worker = multiprocessing.get_context("fork").Process(target=print, args=[forged])
worker.start(); worker.join()
events.emit(StepDone(rank=0, step=7, seconds=0.1))
"""


def test_nothing_that_a_model_or_its_processes_print_is_an_event() -> None:
    forged = StepDone(rank=0, step=1, seconds=1.0).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", FORGES, forged], capture_output=True, timeout=PATIENCE_SECONDS
    )
    (line,) = done.stdout.splitlines()
    event = parse_rank_event(line)
    assert isinstance(event, StepDone) and event.step == 7
    assert done.stderr.count(forged.encode()) >= 6, done.stderr


# Says something until it waits for its reader, and loses rank 1 at SIGUSR1.
STUCK = """
import signal, sys, threading
from placewire.job.contract.specification import Failed, StepDone
from placewire.job.supervision.events import Events, end_on_signals
from placewire.job.supervision.lease_deadline import follow_hold
events, lost = Events(), threading.Event()
end_on_signals(events, 0)
follow_hold(events, 0, None)
signal.signal(signal.SIGUSR1, lambda *_: lost.set())
def lose():
    lost.wait()
    events.fail(Failed(rank=0, what="rank 1 is lost"))
threading.Thread(target=lose, daemon=True).start()
while True:
    SAY
"""


def await_full(pipe: IO[bytes]) -> None:
    """Returns when the pipe has something, and has got no more for half a second."""
    before, since, deadline = 0, time.monotonic(), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < since + 0.5 or not before:
        now = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
        if now != before:
            before, since = now, time.monotonic()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("how", "status"), [("lease", 1), ("SIGTERM", 128 + signal.SIGTERM), ("lost rank", 1)]
)
@pytest.mark.parametrize(
    "says",
    [
        "events.emit(StepDone(rank=0, step=0, seconds=0.1))",
        "print('the model prints')",
        "print('and complains', file=sys.stderr)",
    ],
    ids=["event", "output", "errors"],
)
def test_a_reader_that_does_not_read_keeps_no_rank_from_ending(
    how: str, status: int, says: str
) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", STUCK.replace("SAY", says)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert rank.stdin and rank.stdout and rank.stderr
        await_full(rank.stdout if says.startswith("events") else rank.stderr)
        if how == "lease":
            rank.stdin.write(b'{"held_seconds": 0.5}\n')
            rank.stdin.flush()
        else:
            rank.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGUSR1)
        assert rank.wait(PATIENCE_SECONDS) == status
    finally:
        rank.kill()


def test_a_reader_that_reads_is_told_why() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.replace("SAY", "lost.wait()")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as rank:  # fmt: skip
        assert rank.stdin and rank.stdout
        rank.stdin.write(b'{"held_seconds": 0.2}\n')
        rank.stdin.flush()
        assert b"the lease of the network ran out" in rank.stdout.read()
    assert rank.returncode == 1
