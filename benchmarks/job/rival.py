"""Trains one of our example models as PyTorch's documentation starts DDP, FSDP2 and pipelining.

    torchrun … rival.py {ddp,fsdp,gpipe,1f1b,interleaved} MODEL BATCH STEPS [SPLITS MICRO_BATCHES]

BATCH is that of all ranks. SPLITS: the submodules before which a stage begins, with commas between
them; stages go to the ranks in turn. Every rank prints the seconds of each step, and when it ended,
by the machine's monotonic clock.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)

from placewire.optimizer.capture.protocol import TrainingStep, load_training_step

Step = Callable[[int], object]
# Beside the whole model, submodules of at least so many parameters that are elements of a list of
# submodules, the layers, are sharded as units.
UNIT_PARAMETERS = 200_000


def main() -> None:
    how, model, batch, steps, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = _WAYS[how](how, model, int(batch), *rest)
    for number in range(int(steps)):
        dist.barrier()
        began = time.monotonic()
        step(number)
        ended = time.monotonic()
        print(f"step {ended - began:.6f} ended {ended:.6f}", flush=True)
    gc.collect()
    dist.destroy_process_group()


def _adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)


def _replica(made: TrainingStep, model: nn.Module) -> Step:
    """model: the step's own, or what wraps it."""
    optimizer, loss = _adamw(model), made.loss

    def step(number: int) -> None:
        inputs = made.batches(number)
        optimizer.zero_grad()
        (model(*inputs) if loss is None else loss(model(*inputs[:-1]), inputs[-1])).backward()
        optimizer.step()

    return step


def _ddp(how: str, model: str, batch: int) -> Step:
    made = load_training_step(model, batch // dist.get_world_size(), 0)
    return _replica(made, nn.parallel.DistributedDataParallel(made.model))


def _fsdp(how: str, model: str, batch: int) -> Step:
    made = load_training_step(model, batch // dist.get_world_size(), 0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in list(_units(made.model)):
        fully_shard(unit, mesh=mesh)
    fully_shard(made.model, mesh=mesh)
    return _replica(made, made.model)


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost ones: what lies in a unit is sharded with it."""
    for child in module.children():
        is_layer = isinstance(module, nn.Sequential | nn.ModuleList)
        if is_layer and sum(p.numel() for p in child.parameters()) >= UNIT_PARAMETERS:
            yield child
        else:
            yield from _units(child)


def _pipeline(how: str, model: str, batch: int, splits: str, micro_batches: str) -> Step:
    made = load_training_step(model, batch, 0)
    if made.loss is None:
        raise SystemExit(f"{model} computes its own loss, and pipelining needs it apart")
    count = int(micro_batches)
    first = tuple(one[: batch // count] for one in made.batches(0)[:-1])
    begin = dict.fromkeys(splits.split(","), SplitPoint.BEGINNING)
    traced = pipeline(made.model, mb_args=first, split_spec=begin)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = [
        traced.build_stage(number, torch.device("cpu"))
        for number in range(rank, len(begin) + 1, ranks)
    ]
    schedule = (
        ScheduleInterleaved1F1B([*stages], count, loss_fn=made.loss)
        if how == "interleaved"
        else (ScheduleGPipe if how == "gpipe" else Schedule1F1B)(
            stages[0], count, loss_fn=made.loss
        )
    )
    optimizer = _adamw(nn.ModuleList(stage.submod for stage in stages))

    def step(number: int) -> None:
        inputs = made.batches(number)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(*inputs[:-1])
        else:
            schedule.step(target=inputs[-1])  # the last stage is the last rank's
        optimizer.step()

    return step


_WAYS: dict[str, Callable[..., Step]] = {
    "ddp": _ddp, "fsdp": _fsdp, "gpipe": _pipeline, "1f1b": _pipeline,
    "interleaved": _pipeline,
}  # fmt: skip

if __name__ == "__main__":
    main()
