"""A solver in a process of its own, so that it can be ended.

HiGHS' presolve and its first relaxation do not look at the clock: on programs of some 100,000 rows
it was seen to take four times its time limit; CP-SAT took half as long again. What is small is
solved in this process, which saves the start of another.

The child reads (task, seconds, gap) from standard input and writes an Answer after every round and
a last one to standard output, all as pickles. What the solver prints goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import IO, Protocol

from placewire.optimizer.published.formulations import highs, moirai_intervals
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.papers import Formulation
from placewire.optimizer.published.formulations.program import Program

# With fewer rows, or intervals, than this they keep to the clock well enough.
_SMALL_ROWS, _SMALL_INTERVALS = 10_000, 3_000
# Of the time limit: how much later the child is ended, and what it keeps for its start and the way.
_GRACE, _START_SECONDS = 0.03, 0.7


class Task(Protocol):
    """A solve that can be pickled."""

    def __call__(
        self, seconds: float, gap: float, *, on_round: Callable[[Answer], None]
    ) -> Answer: ...


def solve(program: Program, seconds: float, gap: float, heard: highs.Heard) -> Answer:
    """As highs.solve, within that time in any case: an answer that is not there by then is the one
    of the round before."""
    if len(program.limit) < _SMALL_ROWS:
        return highs.solve(program, seconds, gap, heard)
    return _in_a_child(partial(highs.solve, program), seconds, gap, heard)


def solve_intervals(
    formulation: Formulation, instance: Instance, seconds: float, gap: float, heard: highs.Heard
) -> Answer:
    """As moirai_intervals.solve, within that time in any case. Raises FormulationTooLargeError."""
    moirai_intervals.refuse_too_large(instance)
    task = partial(moirai_intervals.solve, formulation, instance)
    if moirai_intervals.interval_count(instance) < _SMALL_INTERVALS:
        return task(seconds, gap, on_round=lambda a: heard(a.objective, a.bound, a.rounds))
    return _in_a_child(task, seconds, gap, heard)


def _in_a_child(task: Task, seconds: float, gap: float, heard: highs.Heard) -> Answer:
    until = time.monotonic() + seconds * (1 + _GRACE)
    asked = pickle.dumps((task, max(seconds - _START_SECONDS, 0.01), gap))
    best = replace(NO_ANSWER, words="time limit")
    child = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        threading.Thread(target=_send, args=(child.stdin, asked), daemon=True).start()
        for answer in _answers(child.stdout, until):
            best = answer
            heard(best.objective, best.bound, best.rounds)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return best


def _send(pipe: IO[bytes], asked: bytes) -> None:
    try:
        with pipe:
            pipe.write(asked)
    except BrokenPipeError:
        pass  # the child was ended before it had read all


def _answers(pipe: IO[bytes], until: float) -> Iterator[Answer]:
    """As they come, until the pipe is closed or time.monotonic() is `until`."""
    received = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0 and selector.select(left):
            piece = os.read(pipe.fileno(), 1 << 20)
            if not piece:
                return
            received += piece
            while len(received) >= 8:
                size = int.from_bytes(received[:8], "big")
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
        told = pickle.dumps(answer)
        results.write(len(told).to_bytes(8, "big") + told)
        results.flush()

    tell(task(seconds, gap, on_round=tell))


if __name__ == "__main__":
    _child()
