"""Item 7: the time that the command takes beside the engine, with compiled code in the cache."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine.measured import timed
from benchmarks.engine.setting import DEVICE, captured_file
from benchmarks.table import Table

RUNS = 3


def tables(_: Path | None) -> Iterator[Table]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("alexnet", "gpt2"):
            out = str(Path(folder) / "placement.json")
            argv = [
                sys.executable, "-m", "placewire.optimizer.cli", "solve", str(captured_file(name)),
                "--servers", "4", "--nics", "3", "--rate", "20Gbit", "--device-memory", "16GiB",
                "--device-type", DEVICE, "--sharing", "strict", "--moves", "2000", "--out", out,
                "--json",
            ]  # fmt: skip
            timed(argv)  # compiles the code that is not in the cache yet
            for _run in range(RUNS):
                printed, wall = timed(argv)
                engine = sum(json.loads(printed)["wall_seconds"].values())
                rows.append([name, f"{wall:.2f}", f"{engine:.2f}", f"{wall - engine:.2f}"])
    yield Table(
        title="7. The command beside the engine",
        columns=("graph", "command s", "engine s", "difference s"),
        rows=rows,
        notes=(f"optimizer solve, 2000 moves, {time.strftime('%Y-%m-%d')}; process start to end.",),
    )
