"""The median time and the workspace of each operator, measured on this machine.

Every sample is one whole training step on real data, clocked operator by operator, so that caches
and memory are as they are in training. Nothing else should run: a profile taken under contention
predicts badly.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from optimizer.capture.step import CapturedStep
from optimizer.graph import FloatArray, IntArray
from optimizer.profile.interpret import StepInterpreter
from optimizer.profile.sampling import Sampling
from optimizer.profile.workspace import measure_workspace


@dataclass(frozen=True)
class Profile:
    """seconds: float64[n] in the graph's order, 0 for what is there when a step begins.
    workspace_bytes: int64[n].

    whole_step_seconds: the median step without clocks, against sum_of_medians_seconds.
    """

    seconds: FloatArray
    workspace_bytes: IntArray
    whole_step_seconds: float
    samples: int

    @property
    def sum_of_medians_seconds(self) -> float:
        return float(self.seconds.sum())


def measure(
    captured: CapturedStep,
    threads: int,
    sampling: Sampling,
    say: Callable[[str], None],
) -> Profile:
    """Trains the captured step's own parameters for about 1.5 x samples steps."""
    torch.set_num_threads(threads)
    interpreter = StepInterpreter(captured)
    begun, step = time.monotonic(), 0
    while sampling.wants_warm_up(step, time.monotonic() - begun):
        interpreter.run(interpreter.load(step))
        step += 1
    clocked: list[dict[str, float]] = []
    whole: list[float] = []
    while sampling.wants_sample(len(clocked), time.monotonic() - begun):
        inputs = interpreter.load(step + len(clocked))
        clocked.append(interpreter.run_clocked(inputs))
        # Whole steps in between, so that both see the same machine.
        if len(clocked) % 2 == 1:
            whole.append(interpreter.run(inputs))
        say(f"profile: sample {len(clocked)}, step {whole[-1] * 1e3:.1f} ms")
    seconds = np.zeros(captured.operators.operator_count)
    for identifier in clocked[0]:
        index = captured.operators.index_of[identifier]
        seconds[index] = statistics.median(sample[identifier] for sample in clocked)
    workspace = measure_workspace(interpreter, interpreter.load(step + len(clocked)))
    return Profile(seconds, workspace, statistics.median(whole), len(clocked))


def processor_model() -> str:
    """As /proc/cpuinfo names it, or the architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
