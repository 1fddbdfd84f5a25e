"""DistributedDataParallel in slow motion: real messages, and layers that only take their time.

    torchrun … ddp_in_slow_motion.py STEP.json.gz --device-type rtx4080s --time-scale 1000

It measures what DDP makes of a network without the devices. STEP is a graph file with a micro-batch
for each rank (`optimizer profile MODEL --accumulate RANKS`). The model has parameters of the sizes
in that file; its forward half, its backward half from gradient to gradient, and its updates sleep
as long as those of one micro-batch take there, slowed down. All else is PyTorch's: which gradients
travel together, when, and how they are summed.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.step_parts import step_parts

BYTES_PER_VALUE = 4


@dataclass(frozen=True)
class Slow:
    """Seconds of one rank's step. gradients: in the order in which the backward half makes them,
    values and the seconds that each takes after the one before."""

    forward: float
    gradients: Sequence[tuple[int, float]]
    after: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", type=Path, help="with a micro-batch for each rank")
    parser.add_argument("--device-type", required=True, help="whose times in the file count")
    parser.add_argument("--time-scale", type=float, default=1.0, help="how many times slower")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, help="gets the median of all steps but the first")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: at least 2, because the first step does not count")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    slow = slowed(load_graph(options.graph), options.device_type, options.time_scale, ranks)
    # All ranks begin with zeros; to send these first would take as long as several steps.
    model = DistributedDataParallel(SlowModel(slow), init_sync=False)
    taken = []
    for number in range(options.steps):
        dist.barrier()
        began = time.perf_counter()
        model(torch.zeros(1)).backward()
        time.sleep(slow.after)
        taken.append(time.perf_counter() - began)
        if dist.get_rank() == 0:
            print(f"step {number}: {taken[-1]:.3f} s", flush=True)
    if options.out is not None and dist.get_rank() == 0:
        options.out.write_text(f"{statistics.median(taken[1:])}\n", encoding="utf-8")
    gc.collect()  # the model keeps gloo's threads, see ddp.py
    dist.destroy_process_group()


def slowed(graph: OperatorGraph, device_type: str, time_scale: float, ranks: int) -> Slow:
    """Returns what micro-batch 0 takes. Raises ValueError where the graph has not a micro-batch for
    each rank, no gradients that are summed over them, or no times of this type of device."""
    parts = step_parts(graph)
    if parts.micro_batches != ranks:
        raise ValueError(
            f"the file has the step in {parts.micro_batches} micro-batches, for {ranks} ranks; "
            f"profile it with --accumulate {ranks}"
        )
    if device_type not in graph.device_types:
        known = ", ".join(graph.device_types) or "no device"
        raise ValueError(f"the file has no times of {device_type!r}; it has those of {known}")
    seconds = graph.seconds[:, graph.device_types.index(device_type)] * time_scale
    order = graph.topological_order
    own = order[graph.micro_batch[order] == 0]
    # Each gradient has an operator of its own, also where one call makes several.
    made_by = {one.leaves[0]: one.bytes // BYTES_PER_VALUE for one in parts.gradients}
    gradients, since = [], 0.0
    for i in own[~parts.forward[own]].tolist():
        since += float(seconds[i])
        if i in made_by:
            gradients.append((made_by[i], since))
            since = 0.0
    forward = float(seconds[own[parts.forward[own]]].sum())
    return Slow(forward, gradients, since + float(seconds[parts.after].sum()))


class SlowModel(nn.Module):
    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self.seconds = slow.forward
        # As in a model that registers its layers in the order in which they run.
        self.layers = [(nn.Parameter(torch.zeros(n)), s) for n, s in reversed(slow.gradients)]
        self.weights = nn.ParameterList(weight for weight, _ in self.layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        for weight, seconds in self.layers:
            x = SlowLayer.apply(x, weight, seconds)
        return x.sum()


class SlowLayer(torch.autograd.Function):
    """x float[1] -> the same; its backward half makes the weight's gradient after `seconds`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds, ctx.shape = seconds, weight.shape
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], torch.zeros(ctx.shape), None


if __name__ == "__main__":
    main()
