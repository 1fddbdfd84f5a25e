"""Item 9: ours beside one device, DDP, FSDP and pipelines, on the same NICs.

Every row has one step in all numbers of micro-batches, and large weights whole or in as many shards
as there are devices. Peers take their best variant, and we have a minute to find ours.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.engine.setting import DEVICE, cluster
from benchmarks.report import ROOT
from benchmarks.table import Table, milliseconds
from placewire.optimizer.cluster import ASSUMED_MESSAGE_TIME, Cluster
from placewire.optimizer.placement import Placement, load_placement

SECONDS = 60.0
# For the step in one piece, which has few placements that are worth a look.
UNCUT_SECONDS = 5.0
GIGABITS = (1.0, 10.0, 20.0, 100.0, 160.0)
NICS = 3
MICRO_BATCHES = (1, 2, 4, 8, 16)
# Model function and batch.
GRAPHS: Mapping[str, tuple[str, int]] = {
    "alexnet 512": ("alexnet:training_step", 512),
    "vgg16 512": ("vgg16:training_step", 512),
    "resnet50 128": ("resnet50:training_step", 128),
    "bert 64": ("bert:training_step", 64),
    "gpt2 64": ("gpt2:training_step", 64),
    "fnet 64": ("fnet:training_step", 64),
    "transformer 64": ("transformer:training_step", 64),
    "deep transformer 32": ("deep_transformer:training_step", 32),
    "mixture 64": ("mixture:training_step", 64),
    "two towers 1024": ("two_towers:training_step", 1024),
}
LARGER = ("bert 64", "gpt2 64", "resnet50 128", "transformer 64")
PEERS = ("ddp", "fsdp", "gpipe", "1f1b", "interleaved-1f1b")
# Restricts the rows, as in "bert 64,gpt2 64" and "20,160", for a run that has not the time for all.
ONLY_GRAPHS, ONLY_GIGABITS = "PLACEWIRE_BENCH_GRAPHS", "PLACEWIRE_BENCH_GIGABITS"


def tables(_: Path | None) -> Iterator[Table]:
    rates = [float(text) for text in _only(ONLY_GIGABITS, map(str, GIGABITS))]
    for servers, every in ((4, tuple(GRAPHS)), (8, LARGER), (16, LARGER)):
        names = [name for name in _only(ONLY_GRAPHS, every) if name in every]
        rows, ratios = [], []
        for name, gigabits in itertools.product(names, rates):
            found, ours = advised(name, servers, gigabits)
            steps = {row["name"]: row["step_seconds"] for row in found["rows"]}
            # Not every step fits into one device's memory, or can be run by every peer.
            whole = (steps.get("one device"), uncut(name, servers, gigabits))
            others = (*whole, *(steps.get(peer) for peer in PEERS))
            best = min((step for step in others if step is not None), default=math.inf)
            ratios.append(steps["placewire"] / best)
            how = next(row["words"] for row in found["rows"] if row["name"] == "placewire")
            rows.append(
                [
                    f"{name}, {gigabits:g}",
                    *map(milliseconds, (*others, ours.step_seconds)),
                    f"{ratios[-1]:.2f}", f"{ours.gap:.1%}",
                    milliseconds(found["bound_seconds"]), how,
                ]
            )  # fmt: skip
        if rows:
            shortest = sum(ratio <= 1.01 for ratio in ratios)
            yield Table(
                title=f"9. Ours beside what users would take, {servers} servers x {NICS} NICs",
                columns=(
                    "graph batch, Gbit/s a NIC", "one device", "uncut", *PEERS, "ours",
                    "ratio", "gap", "bound", "ours in",
                ),
                rows=rows,
                notes=(
                    f"Steps in ms; {SECONDS:g} s, seed 0. Uncut: our placement of the step in one "
                    f"piece, {UNCUT_SECONDS:g} s. Ratio: ours over the best of the others; "
                    f"at most 1.01 in {shortest} of {len(rows)} rows. Gap: to the bound of the "
                    "variant that is taken. Bound: the least of all variants. No step overlaps "
                    "with the next.",
                ),
            )  # fmt: skip


def _only(variable: str, every: Iterator[str] | Sequence[str]) -> list[str]:
    asked = os.environ.get(variable)
    return list(every) if asked is None else asked.split(",")


def advised(name: str, servers: int, gigabits: float) -> tuple[dict[str, Any], Placement]:
    """What `optimizer advise --json` says, and the placement that it writes."""
    mark = f"advised-{name}-{servers}-{gigabits:g}.{sources_digest()[:12]}".replace(" ", "_")
    kept, out = CACHE / f"{mark}.json", CACHE / f"{mark}.placement.json.gz"
    if not kept.exists():
        files = variant_files(name, servers)
        on = CACHE / f"cluster-{servers}-{gigabits:g}.json"
        on.write_text(cluster_for_cuda(gigabits, servers).model_dump_json())
        print(f"  … {name}, {servers} servers, {gigabits:g} Gbit/s", file=sys.stderr, flush=True)
        kept.write_text(
            optimizer(
                "advise", *map(str, files), "--cluster", str(on), "--time-limit", f"{SECONDS:g}",
                "--json", "--out", str(out),
            )
        )  # fmt: skip
    answer: dict[str, Any] = json.loads(kept.read_text())
    return answer, load_placement(out)


def uncut(name: str, servers: int, gigabits: float) -> float | None:
    """The step in one piece, placed; None where no placement of it fits into memory."""
    mark = f"uncut-{name}-{servers}-{gigabits:g}.{sources_digest()[:12]}".replace(" ", "_")
    kept = CACHE / f"{mark}.json"
    if not kept.exists():
        on = CACHE / f"cluster-{servers}-{gigabits:g}.json"
        on.write_text(cluster_for_cuda(gigabits, servers).model_dump_json())
        try:
            said = optimizer(
                "solve", str(variant_file(name, 1, 1)), "--cluster", str(on), "--sharing", "job",
                "--time-limit", f"{UNCUT_SECONDS:g}", "--gap", "0", "--json",
            )  # fmt: skip
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            said = json.dumps({"step_seconds": None})
        kept.write_text(said)
    step: float | None = json.loads(kept.read_text())["step_seconds"]
    return step


def cluster_for_cuda(gigabits: float, servers: int) -> Cluster:
    """Equal servers of one device, which takes the time to send a message that a plan assumes."""
    takes = {"message_seconds": ASSUMED_MESSAGE_TIME["cuda"].seconds}
    return cluster(gigabits, servers=servers, nics=NICS).model_copy(update=takes)


def variant_files(name: str, servers: int) -> list[Path]:
    """The step in every number of micro-batches that divides its batch, whole and in shards."""
    batch = GRAPHS[name][1]
    counts = {count for count in (*MICRO_BATCHES, servers) if batch % count == 0}
    return [
        variant_file(name, count, shards)
        for count in sorted(counts)
        for shards in ((1, servers) if count > 1 else (1,))
    ]


def variant_file(name: str, micro_batches: int, shards: int) -> Path:
    mark = f"{micro_batches}x{shards}.{sources_digest()[:12]}"
    file = CACHE / f"{name.replace(' ', '_')}.{mark}.json.gz"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        model, batch = GRAPHS[name]
        optimizer(
            "profile", f"placewire.examples.models.{model}", "--batch", str(batch),
            "--accumulate", str(micro_batches), "--shards", str(shards), "--device", DEVICE,
            "--out", str(file),
        )  # fmt: skip
    return file


def optimizer(*words: str) -> str:
    argv = [sys.executable, "-m", "placewire.optimizer.cli", *words]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(
            f"optimizer {words[0]} ended with {done.returncode}: {done.stderr[-500:]}"
        )
    return done.stdout
