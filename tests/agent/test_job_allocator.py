"""Does a process that runs steps give back what it freed?"""

from __future__ import annotations

import subprocess
import sys

MIB = 1 << 20
# A heap that was once as large as this keeps it, where something later lies at its end.
FREES = """
from optimizer.capture.allocator import prepare_allocator
{prepare}
import torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
del [torch.ones(4 << 20) for _ in range(2)][:]
before = resident()
values = [torch.ones(3 << 18) for _ in range(40)]
del values[:-1]
print(resident() - before)
"""


def test_what_is_freed_is_given_back() -> None:
    kept = {}
    for prepare in ("", "prepare_allocator()"):
        program = [sys.executable, "-c", FREES.format(prepare=prepare)]
        ended = subprocess.run(program, capture_output=True, text=True, check=True)
        kept[prepare] = int(ended.stdout)
    assert kept[""] > 100 * MIB
    assert kept["prepare_allocator()"] < 10 * MIB
