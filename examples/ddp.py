"""An ordinary script of DistributedDataParallel: knows nothing of Placewire, only of torchrun.

torchrun --nproc-per-node 1 examples/ddp.py --steps 20
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(options.width, 10)))
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
