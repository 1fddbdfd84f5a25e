"""A rank outlives the reader of what it prints, from the very moment at which that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
from placewire.job.contract.specification import StepDone
from placewire.job.supervision.events import Events
events = Events()
print("heard", flush=True)
sys.stdin.readline()
for step in range(100):
    print("the model prints", flush=True)
    sys.stdout.buffer.write(b"bytes\\n")
    sys.stdout.flush()
    print("and complains", file=sys.stderr)
    events.emit(StepDone(rank=0, step=step, seconds=0.1))
open(sys.argv[1], "w").write("done")
"""


def test_what_nobody_reads_ends_no_rank(tmp_path: Path) -> None:
    end = tmp_path / "end"
    rank = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(end)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert rank.stdin and rank.stdout and rank.stderr
    assert rank.stderr.readline() == b"heard\n", "what a model prints goes to standard error"
    rank.stdout.close()
    rank.stderr.close()
    rank.stdin.write(b"\n")
    rank.stdin.close()
    assert rank.wait(30) == 0 and end.read_text() == "done"
