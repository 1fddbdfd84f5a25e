"""Trains with DistributedDataParallel; needs torchrun and nothing of Placewire.

torchrun --nproc-per-node 2 examples/ddp.py --steps 20
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REPEATS = 5
PARTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--bucket-mb", type=float, default=25.0, help="of gradients, reduced at once"
    )
    parser.add_argument("--all-reduce-mb", type=float, default=0.0, help="time one first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    on_cuda = torch.cuda.is_available()
    torch.set_default_device(f"cuda:{os.environ['LOCAL_RANK']}" if on_cuda else "cpu")
    dist.init_process_group("nccl" if on_cuda else "gloo")
    if options.all_reduce_mb:
        time_all_reduce(round(options.all_reduce_mb * 1e6 / 4))
    train(options)
    # The model is in a cycle of references, and keeps gloo's threads until it is collected: left to
    # the interpreter's end, it aborts the process now and then (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


def time_all_reduce(elements: int) -> None:
    """Times an all-reduce in one piece, and one in several pieces that run at the same time."""
    whole, parts = torch.ones(elements), [torch.ones(elements // PARTS) for _ in range(PARTS)]

    def several() -> None:
        for work in [dist.all_reduce(part, async_op=True) for part in parts]:
            work.wait()

    told("all-reduce", lambda: dist.all_reduce(whole))
    told(f"all-reduce in {PARTS} parts", several)


def told(what: str, act: Callable[[], object]) -> None:
    seconds = []
    for _ in range(REPEATS):
        dist.barrier()
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"{what}: {statistics.median(seconds):.3f} s")


def train(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(
        nn.Sequential(*layers, nn.Linear(options.width, 10)), bucket_cap_mb=options.bucket_mb
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1 + rank)
    for step in range(options.steps):
        began = time.perf_counter()
        examples = torch.randn(options.batch, options.width)
        wanted = torch.randint(0, 10, (options.batch,))
        loss = nn.functional.cross_entropy(model(examples), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {time.perf_counter() - began:.3f} s, loss {loss.item():.4f}")
    total = sum(parameter.detach().double().sum() for parameter in model.parameters())
    print(f"rank {rank} of {dist.get_world_size()}: parameters sum to {total:.12f}")


if __name__ == "__main__":
    main()
