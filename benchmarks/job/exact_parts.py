"""Item 1: random placements of steps in micro-batches and shards against one rank.

As exact.py, but the step is cut into a number of micro-batches, and large weights into shards, that
are drawn; the one rank runs the same program.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.job.exact import MODELS, OPTIMIZERS, RANKS
from benchmarks.job.random_placements import on_one_device, random_placement
from benchmarks.job.rank_pool import RankPool
from benchmarks.table import Table
from placewire.optimizer.capture import shards

STEPS = 6
# Clipping needs the norm of each whole gradient, so that a step with shards refuses it.
OPTIMIZER = "AdamW"
# Every number of micro-batches divides it.
BATCH = 24
MICRO_BATCHES, SHARDS = (2, 3, 4, 8), (1, 2, 3, 5)
# The statistics of a batch norm are of one batch, so that those models are not cut.
CUT = ("mlp", "alexnet", "vgg16", "bert", "fnet", "gpt2", "mixture", "two_towers")
# Placements of each step on each number of ranks.
_SEEDS = 2
_LEAST_SHARD_BYTES = 256


def tables(pictures: Path | None) -> Iterable[Table]:
    rows, count, every = [], 0, 0
    for number, name in enumerate(CUT):
        choose = random.Random(number)
        cuts = choose.sample([(m, s) for m in MICRO_BATCHES for s in SHARDS], 3)
        for micro_batches, count_of_shards in cuts:
            wrong = _differences(name, micro_batches, count_of_shards, 100 * number)
            of = len(RANKS) * _SEEDS
            count, every = count + of - len(wrong), every + of
            equal = "; ".join(wrong) or "yes"
            rows.append([name, str(micro_batches), str(count_of_shards), str(of), equal])
    yield Table(
        title="1. Any placement of a step in parts trains as one rank",
        columns=("model", "micro-batches", "shards", "placements", "equal"),
        rows=rows,
        notes=(
            f"{count} of {every} random placements on {', '.join(map(str, RANKS))} ranks equal one "
            f"rank that runs the same program after {STEPS} steps of batch {BATCH}, to the last "
            f"bit ({OPTIMIZER}). Weights from {_LEAST_SHARD_BYTES} bytes on are cut into shards. "
            "Placements are drawn as in the first table, with bundles in two of three.",
        ),
    )


def _differences(name: str, micro_batches: int, count: int, seed: int) -> list[str]:
    optimizer, wrong = OPTIMIZERS[OPTIMIZER], []
    with RankPool(
        MODELS[name], BATCH, optimizer, seed, small_shards, accumulate=micro_batches, shards=count
    ) as pool:
        one = pool.run(on_one_device(pool.graph), STEPS)
        for ranks in RANKS:
            for k in range(_SEEDS):
                began, case = time.monotonic(), seed + 10 * ranks + k
                rails = ("a", "b")[: 1 + case // 2 % 2]
                placement = random_placement(pool.graph, ranks, rails, case)
                found = one.differences(pool.run(placement, STEPS, rails))
                if found:
                    wrong.append(f"{ranks} ranks, seed {case}: {found[0]}")
                said = f"DIFFER: {', '.join(found[:4])}" if found else "equal"
                took = f"{len(placement.messages)} messages, {time.monotonic() - began:.1f} s"
                words = f"{name}, {micro_batches} micro-batches, {count} shards, {ranks} ranks"
                print(f"{words}: {said}, {took}", file=sys.stderr, flush=True)
    return wrong


def small_shards() -> None:
    """Lets small models have shards, too."""
    shards.LEAST_SHARD_BYTES = _LEAST_SHARD_BYTES
