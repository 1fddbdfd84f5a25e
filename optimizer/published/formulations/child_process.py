"""Runs a solver in a process of its own, which can be ended at the time limit.

HiGHS does not check the clock in its presolve and first relaxation: it was seen to take four times
its time limit on programs of some 100,000 rows; CP-SAT took half as long again. Small programs are
solved in this process, which saves the start of another.

The child reads (task, seconds, gap) from standard input; it writes an Answer after every round, and
a last one, to standard output. All are pickles; after the last there is one of no bytes. What the
solver prints goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import IO

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.formulations import highs, moirai_intervals, sorted_intervals
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer, Heard
from placewire.optimizer.published.formulations.errors import SolverCrashedError
from placewire.optimizer.published.formulations.limits import cp_sat_parts
from placewire.optimizer.published.formulations.papers import Formulation
from placewire.optimizer.published.formulations.program import Program

# With fewer rows, or parts of a model of CP-SAT, than this the solvers keep to their time limit
# well enough.
_SMALL_ROWS, _SMALL_PARTS = 10_000, 10_000
# How much later than the time limit the child is ended, as a fraction of the limit; and the seconds
# that its start and its answer's way back may take.
_GRACE, _START_SECONDS = 0.03, 0.7


# A solve that can be pickled: (seconds, gap, heard) -> the answer.
Task = Callable[[float, float, Heard], Answer]


def solve(program: Program, seconds: float, gap: float, heard: Heard) -> Answer:
    """As highs.solve, but never longer than `seconds`: the answer of the round before replaces one
    that comes too late. Raises SolverCrashedError where the child ended before both."""
    task = partial(highs.solve, program)
    if len(program.limit) < _SMALL_ROWS:
        return task(seconds, gap, heard)
    return _in_a_child(task, seconds, gap, heard)


def solve_intervals(
    formulation: Formulation,
    starts: Sequence[IntArray],
    seconds: float,
    gap: float,
    heard: Heard,
) -> Answer:
    """As solve of moirai_intervals or sorted_intervals, but never longer than that."""
    moirai = formulation.name == "moirai"
    solver = moirai_intervals.solve if moirai else sorted_intervals.solve
    task = partial(solver, formulation, tuple(starts))
    if cp_sat_parts(formulation) < _SMALL_PARTS:
        return task(seconds, gap, heard)
    return _in_a_child(task, seconds, gap, heard)


def _in_a_child(task: Task, seconds: float, gap: float, heard: Heard) -> Answer:
    until = time.monotonic() + seconds * (1 + _GRACE)
    asked = pickle.dumps((task, max(seconds - _START_SECONDS, 0.01), gap))
    best = replace(NO_ANSWER, words="time limit")
    command = [sys.executable, "-P", "-m", __name__]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        threading.Thread(target=_send, args=(child.stdin, asked), daemon=True).start()
        for answer in _answers(child.stdout, until):
            best = answer
            heard(answer)
    except EOFError:
        raise SolverCrashedError(_how_it_ended(child.wait())) from None
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return best


def _how_it_ended(code: int) -> str:
    how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
    if code == -signal.SIGKILL:
        how += ", as the kernel ends processes where memory runs out"
    return (
        f"the solver's process ended {how}, before its time and without an answer; what it said of "
        "that is above. Choose another solver (--solver), reduce the graph (--reduction), or use "
        "engine auto"
    )


def _send(pipe: IO[bytes], asked: bytes) -> None:
    try:
        with pipe:
            pipe.write(asked)
    except BrokenPipeError:
        pass  # the child was ended before it had read all


def _answers(pipe: IO[bytes], until: float) -> Iterator[Answer]:
    """Yields answers as they come, until the last one or until time.monotonic() reaches `until`.
    Raises EOFError where the pipe is closed before both."""
    received = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0 and selector.select(left):
            piece = os.read(pipe.fileno(), 1 << 20)
            if not piece:
                raise EOFError
            received += piece
            while len(received) >= 8:
                size = int.from_bytes(received[:8], "big")
                if size == 0:
                    return
                if len(received) < 8 + size:
                    break
                answer: Answer = pickle.loads(received[8 : 8 + size])
                del received[: 8 + size]
                yield answer


def _child() -> None:
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    task, seconds, gap = pickle.load(sys.stdin.buffer)

    def tell(answer: Answer) -> None:
        write(pickle.dumps(answer))

    def write(told: bytes) -> None:
        results.write(len(told).to_bytes(8, "big") + told)
        results.flush()

    tell(task(seconds, gap, tell))
    write(b"")


if __name__ == "__main__":
    _child()
