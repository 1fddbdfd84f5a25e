"""Does a process that runs steps fault in its memory once, and not in every step?"""

from __future__ import annotations

import subprocess
import sys

import pytest

# Storages of many sizes, up to 64 MiB, which glibc by default takes from the heap's end or maps,
# and gives back.
STEPS = """
from placewire.optimizer.capture.allocator import prepare_allocator
{prepare}
import resource
import torch
def step():
    kept = [torch.ones(3 << 18)]
    for size in (2, 6, 3, 16, 5, 4, 7, 1):
        kept += [torch.ones(size << 20), torch.ones(size << 18)]
        if len(kept) > 6:
            del kept[1:3]
for _ in range({settle}):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# A heap grows until it has room for what a step asks for in any order: after 14 steps at most in
# 30 runs, under each of the kernel's three settings for huge pages.
SETTLE_STEPS = 30


@pytest.mark.parametrize(
    "run", [1, *(pytest.param(run, marks=pytest.mark.thorough) for run in (2, 3))]
)
def test_a_step_faults_in_no_page_twice(run: int) -> None:
    """Without prepare_allocator() four of five runs fault hundreds of huge pages, or tens of
    thousands of pages."""
    program = STEPS.format(prepare="prepare_allocator()", settle=SETTLE_STEPS)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 10
