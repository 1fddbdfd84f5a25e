"""Times all-reduces of several sizes; every rank of a process group of gloo runs it.

    python all_reduce_times.py BYTES:REPEATS …

Rank 0 prints, for each size, the seconds of each repeat. It needs torch alone.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for size, repeats in (map(int, one.split(":")) for one in sys.argv[1:]):
        values = torch.ones(size // 4)
        dist.all_reduce(values)
        seconds = []
        for _ in range(repeats):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            seconds.append(time.perf_counter() - began)
        found[size] = seconds
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
