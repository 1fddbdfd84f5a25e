"""Measures the time and the workspace of each operator on this machine.

Every sample is one whole training step on real data, clocked operator by operator, so that caches
and memory are as they are in training. Nothing else should run: a profile taken under contention
predicts badly.

The sum of the operators' medians is not quite the median step: reading the clock takes time, and
disturbances hit a different operator in each step, so that no operator's median shows them.
`calibrated` spreads this difference over the operators, in proportion to their times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.capture.allocations import workspace_bytes
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.memory import MemoryMeter, held_bytes
from placewire.optimizer.profile.sampling import Sampling
from placewire.optimizer.profile.straight import StraightStep

# How often a long measurement is told of.
_TELL_SECONDS = 3.0


@dataclass(frozen=True)
class Profile:
    """seconds: float64[n] in the graph's order, 0 for values that exist before a step begins.
    workspace_bytes: int64[n].

    whole_step_seconds: the median step without clocks, to compare with sum_of_medians_seconds.
    program_bytes: what the process holds between steps beside the step's tensors. process_bytes:
    the most that it holds during a step, tensors included. Both None where they cannot be measured.
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
        """Returns the profile with times that sum to the whole step."""
        factor = self.whole_step_seconds / self.sum_of_medians_seconds
        return replace(self, seconds=self.seconds * factor)


def measure(
    captured: CapturedStep,
    threads: int,
    sampling: Sampling,
    say: Callable[[str], None],
) -> Profile:
    """Trains the captured step's own parameters for about 1.5 x samples steps. Returns a profile
    that is not calibrated."""
    torch.set_num_threads(threads)
    program = StraightStep(captured)
    # The workspace is that of the second step: the first also makes optimizer state, and what
    # libraries keep.
    program.run(program.load(0))
    workspace = workspace_bytes(captured, program.run_weighed(program.load(1)))
    begun, warm_up = time.monotonic(), 0
    while sampling.wants_warm_up(warm_up, time.monotonic() - begun):
        program.run(program.load(warm_up))
        warm_up += 1
    meter = MemoryMeter(captured.device.type)
    meter.after_first_step(held_bytes(program.module))
    clocked: list[list[float]] = []
    whole: list[float] = []
    told = begun
    while sampling.wants_sample(len(clocked), time.monotonic() - begun):
        inputs = program.load(warm_up + len(clocked))
        clocked.append(program.run_clocked(inputs))
        # Whole steps alternate with clocked ones, so that both see the same machine.
        if len(clocked) % 2 == 1:
            started = time.perf_counter()
            program.run(inputs)
            whole.append(time.perf_counter() - started)
        if (now := time.monotonic()) - told >= _TELL_SECONDS:
            told = now
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
