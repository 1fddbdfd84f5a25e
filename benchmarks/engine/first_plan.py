"""Item 7: how long a user waits for the first plan of a step whose costs are known.

The command gets all graphs of `optimizer profile --accumulate auto`, and reads, bounds and compares
them before it searches one. The first plan is the first one that it tells of that is shorter than
one device; the command writes the best one when its time is over.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine.parallelisms import variant_files
from benchmarks.engine.setting import DEVICE
from benchmarks.report import ROOT
from benchmarks.table import Table, milliseconds
from placewire.optimizer.placement import load_placement
from placewire.optimizer.quantities import parse_seconds

GRAPH, SERVERS, NICS = "bert 64", 4, 3
GIGABITS = (20, 160)
# `optimizer solve` ends in this time, start and reading included.
SECONDS, RUNS = 30, 3
_TOLD = re.compile(r" best ([\d.]+) ?(\w+), bound")


class First(NamedTuple):
    """after_seconds: since the command was started."""

    after_seconds: float
    step_seconds: float


def tables(_: Path | None) -> Iterator[Table]:
    files, rows = variant_files(GRAPH, SERVERS), []
    for gigabits in GIGABITS:
        _run(files, gigabits)  # compiles the code that is not in the cache yet
        for _again in range(RUNS):
            rows.append([f"{GRAPH}, {gigabits}", *_run(files, gigabits)])
    yield Table(
        title=f"7. From the command to a first plan, {SERVERS} servers x {NICS} NICs",
        columns=(
            "graph batch, Gbit/s a NIC", "one device ms", "first plan after s", "its step ms",
            "written after s", "its step ms", "taken",
        ),
        rows=rows,
        notes=(
            f"optimizer solve with {len(files)} graphs that have their times, --sharing job, "
            f"--time-limit {SECONDS}; process start to end, compiled code in the cache. First "
            "plan: the first that the command tells of and that is shorter than one device; its "
            "step is as a search counts it, which knows of messages only about how many there are.",
        ),
    )  # fmt: skip


def _run(files: list[Path], gigabits: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "placement.json.gz"
        argv = [
            sys.executable, "-m", "placewire.optimizer.cli", "solve", *map(str, files),
            "--servers", str(SERVERS), "--nics", str(NICS), "--rate", f"{gigabits}Gbit",
            "--device-memory", "16GiB", "--device-type", DEVICE, "--sharing", "job",
            "--gap", "0", "--time-limit", str(SECONDS), "--out", str(out),
        ]  # fmt: skip
        began = time.monotonic()
        told = []
        with subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as command:
            assert command.stderr is not None
            for line in command.stderr:
                told.append((time.monotonic() - began, line))
        wall = time.monotonic() - began
        if command.returncode:
            last = told[-1][1].strip() if told else "it printed nothing"
            raise RuntimeError(f"optimizer solve ended with {command.returncode}: {last}")
        placement = load_placement(out)
    alone = placement.best_single_device_seconds
    assert alone is not None, "one device can hold this step"
    first = first_plan(told, alone)
    taken = next(v.name for v in placement.variants if v.structure_hash == placement.structure_hash)
    found = ["-", "-"] if first is None else [f"{first[0]:.1f}", milliseconds(first[1])]
    return [
        milliseconds(alone), *found, f"{wall:.1f}", milliseconds(placement.step_seconds), taken,
    ]  # fmt: skip


def first_plan(told: Iterable[tuple[float, str]], alone_seconds: float) -> First | None:
    """The first step that is shorter than on one device. told: lines of progress, and when each
    came; they are rounded, so that a thousandth less than one device is not shorter."""
    for after, line in told:
        if (found := _TOLD.search(line)) is not None:
            step = parse_seconds("".join(found.groups()))
            if step < alone_seconds * (1 - 1e-3):
                return First(after, step)
    return None
