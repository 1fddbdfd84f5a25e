"""Item 5: the time of one rank's straight-line step beside eager PyTorch, and that of a capture.

Both steps run on the same batch, each in a process of its own as users run it. They take turns step
by step, so that other work of the machine that lasts longer than a step slows both of a round.
"""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Self, TypeVar

from benchmarks.report import ROOT
from benchmarks.table import Table, milliseconds
from placewire.job.contract.specification import OptimizerSpec
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice

MODEL, BATCH, THREADS = "placewire.examples.models.alexnet:training_step", 128, 2
# Before a turn: a process's idle threads look for work for a while, on cores that the other needs.
PAUSE_SECONDS = 0.4
# During the warm-up a rank's heap grows until it has a place for all that a step allocates.
WARM_UP, ROUNDS = 20, 101
OPTIMIZERS = {
    "SGD, momentum": OptimizerSpec(name="sgd", lr=0.01, options={"momentum": 0.9}),
    "AdamW": OptimizerSpec(name="adamw", lr=1e-3),
}
CAPTURED, CAPTURED_BATCH, CAPTURES = "placewire.examples.models.bert:training_step", 64, 5

Result = TypeVar("Result")


def tables(pictures: Path | None) -> Iterable[Table]:
    yield _speed()
    yield _captures()


def _speed() -> Table:
    rows = []
    for title, optimizer in OPTIMIZERS.items():
        rounds = timed_rounds(MODEL, BATCH, THREADS, optimizer, ROUNDS)
        ratios = [placed / eager for eager, placed in rounds]
        eager, placed = (median(round_[k] for round_ in rounds) for k in (0, 1))
        sure, most = (f"{low:.3f} to {high:.3f}" for low, high in intervals(ratios))
        rows.append(
            [title, milliseconds(eager), milliseconds(placed), f"{median(ratios):.3f}", sure, most]
        )
    return Table(
        title="5. One rank beside eager PyTorch",
        columns=("optimizer", "eager ms", "one rank ms", "ratio", "95 % sure", "half of rounds"),
        rows=rows,
        notes=(
            f"AlexNet, batch {BATCH}, {THREADS} threads; medians of {ROUNDS} rounds after "
            f"{WARM_UP}, in each one step of either, in turn first; the ratio is the median of the "
            "rounds', 95 % sure what order statistics say of that median, half of rounds the "
            "middle half of them. Eager: the same modules with torch's fused optimizer.",
        ),
    )


def intervals(values: Sequence[float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the interval that holds the median of the values' distribution with a probability of
    95 %, whatever the distribution (binomial, by its normal approximation), and the interval of the
    middle half of the values."""
    ordered, count = sorted(values), len(values)
    away = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - away))
    quarter = count // 4
    return (ordered[low], ordered[-1 - low]), (ordered[quarter], ordered[-1 - quarter])


def _captures() -> Table:
    choice = OptimizerChoice()
    found: dict[str, list[tuple[float, float]]] = {title: [] for title in WAYS}
    for _ in range(CAPTURES):
        for title, way in WAYS.items():
            found[title].append(_alone(way, CAPTURED, CAPTURED_BATCH, choice))
    rows = []
    for title, times in found.items():
        seconds, processor = zip(*times, strict=True)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        rows.append([title, f"{median(seconds):.2f}", spread, f"{median(processor):.2f}"])
    return Table(
        title="5. Capture of BERT-base",
        columns=("the model's parameters", "capture s", "from, to", "processor s"),
        rows=rows,
        notes=(
            f"{CAPTURED}, batch {CAPTURED_BATCH}, the model's own construction included; medians "
            f"of {CAPTURES}, in turn, each in a process of its own that has imported torch and "
            "nothing captured. With values: capture(), which a profile runs. Without: what "
            "`optimizer capture` runs.",
        ),
    )


def _alone(function: Callable[..., Result], *arguments: object) -> Result:
    """Runs a function in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def with_values(model: str, batch: int, choice: OptimizerChoice) -> tuple[float, float]:
    return _timed(lambda: capture(model, batch, choice, seed=0))


def without_values(model: str, batch: int, choice: OptimizerChoice) -> tuple[float, float]:
    return _timed(
        lambda: capture_part(CaptureOptions(model, batch, choice, seed=0), wanted=(), others=False)
    )


WAYS = {"with values": with_values, "without": without_values}


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Returns (seconds, processor seconds)."""
    began, worked = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - worked


def timed_rounds(
    model: str, batch: int, threads: int, optimizer: OptimizerSpec, rounds: int
) -> list[tuple[float, float]]:
    """The (eager seconds, one rank's seconds) of each round."""
    asked = (model, str(batch), str(threads), optimizer.model_dump_json())
    with _Runner("eager", *asked) as eager, _Runner("placed", *asked) as placed:
        runners, found = (eager, placed), []
        for number in range(WARM_UP + rounds):
            seconds = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                seconds[which] = runners[which].step(number)
            found.append((seconds[0], seconds[1]))
    return found[WARM_UP:]


class _Runner:
    """A process of taking_turns.py."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.job.taking_turns", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()

    def step(self, number: int) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        time.sleep(PAUSE_SECONDS)
        print(number, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())
