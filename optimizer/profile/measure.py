"""The time and the workspace of each operator, measured on this machine.

Every sample is one whole training step on real data, clocked operator by operator, so that caches
and memory are as they are in training. Nothing else should run: a profile taken under contention
predicts badly.

The sum of the operators' medians is not quite the median step: reading the clock takes time, and
what disturbs a step disturbs another operator each time, which no operator's median shows.
`calibrated` spreads that difference over the operators, in proportion to their times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.capture.allocations import Allocations, workspace_bytes
from placewire.optimizer.capture.memory import MemoryMeter, held_bytes
from placewire.optimizer.capture.step import CapturedStep
from placewire.optimizer.profile.interpret import Call, StepInterpreter
from placewire.optimizer.profile.sampling import Sampling
from placewire.optimizer.profile.straight import StraightStep


@dataclass(frozen=True)
class Profile:
    """seconds: float64[n] in the graph's order, 0 for what is there when a step begins.
    workspace_bytes: int64[n].

    whole_step_seconds: the median step without clocks, against sum_of_medians_seconds.
    program_bytes: what the process holds beside the step's tensors between steps, process_bytes the
    most that it holds in one, tensors included; None where that cannot be told.
    """

    seconds: FloatArray
    workspace_bytes: IntArray
    whole_step_seconds: float
    warm_up_steps: int
    samples: int
    program_bytes: int | None
    process_bytes: int | None

    @property
    def sum_of_medians_seconds(self) -> float:
        return float(self.seconds.sum())

    def calibrated(self) -> Profile:
        """With times that sum to the whole step."""
        factor = self.whole_step_seconds / self.sum_of_medians_seconds
        return replace(self, seconds=self.seconds * factor)


def measure(
    captured: CapturedStep,
    threads: int,
    sampling: Sampling,
    say: Callable[[str], None],
) -> Profile:
    """Trains the captured step's own parameters for about 1.5 x samples steps. Not calibrated."""
    torch.set_num_threads(threads)
    workspace = _workspace(captured)
    program = StraightStep(captured)
    begun, warm_up = time.monotonic(), 0
    while sampling.wants_warm_up(warm_up, time.monotonic() - begun):
        program.run(program.load(warm_up))
        warm_up += 1
    meter = MemoryMeter(captured.device.type)
    meter.after_first_step(held_bytes(program.module))
    clocked: list[list[float]] = []
    whole: list[float] = []
    while sampling.wants_sample(len(clocked), time.monotonic() - begun):
        inputs = program.load(warm_up + len(clocked))
        clocked.append(program.run_clocked(inputs))
        # Whole steps in between, so that both see the same machine.
        if len(clocked) % 2 == 1:
            whole.append(program.run(inputs))
        say(f"profile: sample {len(clocked)}, step {whole[-1] * 1e3:.1f} ms")
    seconds = np.zeros(captured.operators.operator_count)
    indices = [captured.operators.index_of[name] for name in program.clocked]
    seconds[indices] = np.median(clocked, axis=0)
    return Profile(
        seconds,
        workspace,
        whole_step_seconds=statistics.median(whole),
        warm_up_steps=warm_up,
        samples=len(clocked),
        program_bytes=meter.program_bytes,
        process_bytes=meter.program_and_step_bytes,
    )


def _workspace(captured: CapturedStep) -> IntArray:
    """From the second step: the first also makes optimizer state, and what libraries keep."""
    interpreter = StepInterpreter(captured)
    interpreter.run(interpreter.load(0))
    inputs, allocations = interpreter.load(1), Allocations(captured.device.type)

    def counted(name: str, call: Call, arguments: Any, options: Any) -> Any:
        with allocations.of(name):
            return call(*arguments, **options)

    with allocations.watched():
        interpreter.run_each(inputs, counted)
    return workspace_bytes(captured, allocations.peaks)
