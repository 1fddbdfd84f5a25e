"""Item 1: random placements of steps in micro-batches and shards against one rank.

As exact.py, but the step is cut into a number of micro-batches, and large weights into shards, that
are drawn; the one rank runs the same program. tests/job/test_exact_parts.py runs the same.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.exact import MODELS, OPTIMIZERS, RANKS
from benchmarks.job.random_placements import on_one_device, random_placement
from benchmarks.job.rank_pool import RankPool
from benchmarks.table import Table
from placewire.optimizer.capture import shards

STEPS = 6
# Clipping needs the norm of each whole gradient, so that a step with shards refuses it.
OPTIMIZER = OPTIMIZERS["AdamW"]
# Every number of micro-batches divides it.
BATCH = 24
MICRO_BATCHES, SHARDS = (2, 3, 4, 8), (1, 2, 3, 5)
# `hard` stands for all models with batch norms, whose buffers one micro-batch hands to the next.
CUT = ("mlp", "alexnet", "vgg16", "bert", "fnet", "gpt2", "mixture", "two_towers", "hard")
_CUTS_OF_A_MODEL = 2
# Placements of each step on each number of ranks.
_SEEDS = 2
_LEAST_SHARD_BYTES = 1024


@dataclass(frozen=True)
class CutStep:
    """A step of one of MODELS. seed: of the model, and from it on of the placements."""

    model: str
    micro_batches: int
    shards: int
    seed: int

    def __str__(self) -> str:
        return f"{self.model}, {self.micro_batches} micro-batches, {self.shards} shards"


def cut_steps() -> tuple[CutStep, ...]:
    """Every model in two numbers of micro-batches and of shards."""
    choose, found = random.Random(23), list[CutStep]()
    for name in CUT:
        parts = choose.sample(MICRO_BATCHES, _CUTS_OF_A_MODEL)
        counts = choose.sample(SHARDS, _CUTS_OF_A_MODEL)
        for micro_batches, count in zip(parts, counts, strict=True):
            found.append(CutStep(name, micro_batches, count, 100 * (1 + len(found))))
    return tuple(found)


def tables(pictures: Path | None) -> Iterable[Table]:
    rows, count, every = [], 0, 0
    for step in cut_steps():
        wrong = differences(step)
        of = len(RANKS) * _SEEDS
        count, every = count + of - len(wrong), every + of
        equal = "; ".join(wrong) or "yes"
        rows.append([step.model, str(step.micro_batches), str(step.shards), str(of), equal])
    yield Table(
        title="1. Any placement of a step in parts trains as one rank",
        columns=("model", "micro-batches", "shards", "placements", "equal"),
        rows=rows,
        notes=(
            f"{count} of {every} random placements on {', '.join(map(str, RANKS))} ranks equal one "
            f"rank that runs the same program after {STEPS} steps of batch {BATCH}, to the last "
            f"bit (AdamW). Weights from {2 * _LEAST_SHARD_BYTES} bytes on are cut into shards, and "
            "smaller ones of whole vectors have replicas. Placements are drawn as in the first "
            "table, with bundles in two of three.",
        ),
    )


def pool_of(step: CutStep) -> RankPool:
    return RankPool(
        MODELS[step.model], BATCH, OPTIMIZER, step.seed, small_shards,
        accumulate=step.micro_batches, shards=step.shards,
    )  # fmt: skip


def differences(
    step: CutStep, ranks: Sequence[int] = RANKS, seeds: int = _SEEDS, steps: int = STEPS
) -> list[str]:
    """Where random placements differ from one rank: `seeds` of them on each number of ranks."""
    wrong = []
    with pool_of(step) as pool:
        one = pool.run(on_one_device(pool.graph), steps)
        for count in ranks:
            for k in range(seeds):
                began, case = time.monotonic(), step.seed + 10 * count + k
                rails = ("a", "b")[: 1 + case // 2 % 2]
                placement = random_placement(pool.graph, count, rails, case)
                found = one.differences(pool.run(placement, steps, rails))
                if found:
                    wrong.append(f"{count} ranks, seed {case}: {found[0]}")
                said = f"DIFFER: {', '.join(found[:4])}" if found else "equal"
                took = f"{len(placement.messages)} messages, {time.monotonic() - began:.1f} s"
                print(f"{step}, {count} ranks: {said}, {took}", file=sys.stderr, flush=True)
    return wrong


def small_shards() -> None:
    """Lets small models have shards, too."""
    shards.LEAST_SHARD_BYTES, shards.LEAST_SHARD_PART = _LEAST_SHARD_BYTES, 0.0
