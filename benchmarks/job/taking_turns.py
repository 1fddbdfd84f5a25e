"""Runs a training step for each line with its number, and answers with the seconds that it took.

    python -m benchmarks.job.taking_turns {eager,placed} MODEL BATCH THREADS OPTIMIZER

eager: plain PyTorch runs the step. placed: it runs as in a job's only rank, with the rank's
allocator.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

from benchmarks.job.eager import EagerStep
from benchmarks.job.random_placements import on_one_device
from placewire.job.contract.specification import OptimizerSpec
from placewire.job.messages.rank_messages import rank_messages
from placewire.job.placed.lower import lower
from placewire.job.transport.transport import Alone
from placewire.optimizer.capture.allocator import prepare_allocator
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice

Step = Callable[[int], object]


def main() -> None:
    kind, model, batch, threads, optimizer = sys.argv[1:]
    if kind == "placed":
        prepare_allocator()
    import torch

    torch.set_num_threads(int(threads))
    step = {"eager": _eager, "placed": _placed}[kind](
        model, int(batch), OptimizerSpec.model_validate_json(optimizer)
    )
    gc.disable()
    for line in sys.stdin:
        began = time.perf_counter()
        step(int(line))
        print(time.perf_counter() - began, flush=True)


def _eager(model: str, batch: int, optimizer: OptimizerSpec) -> Step:
    eager = EagerStep(model, batch, optimizer, seed=0)
    data = eager.batches(0)
    return lambda number: eager.run(number, *data)


def _placed(model: str, batch: int, optimizer: OptimizerSpec) -> Step:
    import torch

    captured = capture(model, batch, OptimizerChoice.of(optimizer.model_dump()), seed=0)
    placement = on_one_device(captured.operators)
    (device,) = placement.devices_used
    program = lower(captured, placement, device, rank_messages(placement, device, ()), Alone())
    data = captured.batches(0)
    inputs = tuple(data[position] for position in program.inputs)

    def step(number: int) -> None:
        program.tell(number)
        with torch.no_grad():
            program.module(*inputs)

    return step


if __name__ == "__main__":
    main()
