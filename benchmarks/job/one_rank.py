"""Item 5: what the straight-line step of one rank costs beside eager PyTorch, and a capture's time.

Both steps run in one process, in turn, on the same batch; a round's ratio is therefore free of what
else the machine does for longer than a step.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from agent.contract.job import OptimizerSpec
from agent.job.lower import lower
from agent.job.messages import rank_messages
from agent.job.transport import Alone
from benchmarks.job.eager import EagerStep
from benchmarks.job.random_placements import on_one_device
from benchmarks.table import Table, milliseconds
from optimizer.capture.step import CapturedStep, capture
from optimizer.capture.updates import OptimizerChoice

MODEL, BATCH, THREADS = "examples.models.alexnet:training_step", 128, 2
WARM_UP, ROUNDS = 3, 15
OPTIMIZERS = {
    "SGD, momentum": OptimizerSpec(name="sgd", lr=0.01, options={"momentum": 0.9}),
    "AdamW": OptimizerSpec(name="adamw", lr=1e-3),
}
CAPTURED, CAPTURED_BATCH, CAPTURES = "examples.models.bert:training_step", 64, 5

Step = Callable[..., object]
Result = TypeVar("Result")


def tables(pictures: Path | None) -> Iterable[Table]:
    yield _speed()
    yield _captures()


def _speed() -> Table:
    rows = []
    for title, optimizer in OPTIMIZERS.items():
        rounds = _alone(timed_rounds, MODEL, BATCH, THREADS, optimizer, ROUNDS)
        ratios = sorted(placed / eager for eager, placed in rounds)
        eager, placed = (median(round_[k] for round_ in rounds) for k in (0, 1))
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        rows.append(
            [title, milliseconds(eager), milliseconds(placed), f"{median(ratios):.3f}", spread]
        )
    return Table(
        title="5. One rank beside eager PyTorch",
        columns=("optimizer", "eager ms", "one rank ms", "ratio", "ratios from, to"),
        rows=rows,
        notes=(
            f"AlexNet, batch {BATCH}, {THREADS} threads; medians of {ROUNDS} rounds after "
            f"{WARM_UP}, in each one step of either, in turn first; the ratio is the median of the "
            "rounds'. Eager: the same modules with torch's fused optimizer.",
        ),
    )


def _captures() -> Table:
    choice = OptimizerChoice()
    seconds = [_alone(capture_seconds, CAPTURED, CAPTURED_BATCH, choice) for _ in range(CAPTURES)]
    times = f"{min(seconds):.2f} to {max(seconds):.2f}"
    return Table(
        title="5. Capture of BERT-base",
        columns=("model", "capture s", "from, to"),
        rows=[[f"{CAPTURED}, batch {CAPTURED_BATCH}", f"{median(seconds):.2f}", times]],
        notes=(
            f"capture(), the model's own construction included; the median of {CAPTURES}, each in "
            "a process of its own that has imported torch and nothing captured.",
        ),
    )


def _alone(function: Callable[..., Result], *arguments: object) -> Result:
    """In a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def capture_seconds(model: str, batch: int, choice: OptimizerChoice) -> float:
    began = time.perf_counter()
    capture(model, batch, choice, seed=0)
    return time.perf_counter() - began


def timed_rounds(
    model: str, batch: int, threads: int, optimizer: OptimizerSpec, rounds: int
) -> list[tuple[float, float]]:
    """(eager seconds, one rank's seconds) of each round."""
    torch.set_num_threads(threads)
    captured = capture(model, batch, OptimizerChoice.of(optimizer.model_dump()), seed=0)
    steps = (EagerStep(model, batch, optimizer, seed=0).run, _placed(captured))
    data = captured.batches(0)
    found = []
    gc.disable()
    for number in range(WARM_UP + rounds):
        seconds = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            steps[which](number, *data)
            seconds[which] = time.perf_counter() - began
        found.append((seconds[0], seconds[1]))
    return found[WARM_UP:]


def _placed(captured: CapturedStep) -> Step:
    placement = on_one_device(captured.operators)
    (device,) = placement.devices_used
    messages = rank_messages(placement, device, ())
    program = lower(captured, placement, device, messages, Alone())

    def step(number: int, *data: torch.Tensor) -> None:
        program.tell(number)
        with torch.no_grad():
            program.module(*(data[position] for position in program.inputs))

    return step
