"""The median time of each operator, measured on this machine.

Every sample is one whole training step on real data, clocked operator by operator, so that caches
and memory are as they are in training. Nothing else should run: a profile taken under contention
predicts badly. Workspace is not measured and stays 0: the allocator does not see what the CPU
kernels take for themselves.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from optimizer.capture.step import CapturedStep
from optimizer.graph import FloatArray
from optimizer.profile.interpret import StepInterpreter

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Profile:
    """seconds: float64[n] in the graph's order, 0 for what is there when a step begins.

    whole_step_seconds: the median step without clocks, against sum_of_medians_seconds.
    """

    seconds: FloatArray
    whole_step_seconds: float
    samples: int

    @property
    def sum_of_medians_seconds(self) -> float:
        return float(self.seconds.sum())


def measure(
    captured: CapturedStep,
    threads: int,
    samples: int,
    say: Callable[[str], None],
) -> Profile:
    """Trains the captured step's own parameters for about 1.5 x samples steps."""
    torch.set_num_threads(threads)
    interpreter = StepInterpreter(captured)
    for step in range(WARM_UP_STEPS):
        interpreter.run(interpreter.load(step))
    clocked: list[dict[str, float]] = []
    whole: list[float] = []
    for sample in range(samples):
        inputs = interpreter.load(WARM_UP_STEPS + sample)
        clocked.append(interpreter.run_clocked(inputs))
        # Whole steps in between, so that both see the same machine.
        if sample % 2 == 0:
            whole.append(interpreter.run(inputs))
        say(f"profile: sample {sample + 1} of {samples}, step {whole[-1] * 1e3:.1f} ms")
    seconds = np.zeros(captured.operators.operator_count)
    for identifier in clocked[0]:
        index = captured.operators.index_of[identifier]
        seconds[index] = statistics.median(sample[identifier] for sample in clocked)
    return Profile(seconds, statistics.median(whole), samples)


def processor_model() -> str:
    """As /proc/cpuinfo names it, or the architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
