"""Item 1: random placements of steps in micro-batches and shards against one rank.

As exact.py, but the step is cut into a number of micro-batches, and large weights into shards, that
are drawn; the one rank runs the same program. tests/job/test_exact_parts.py runs the same.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
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
RAILS = ("a", "b")
# `hard` stands for all models with batch norms, whose buffers one micro-batch hands to the next.
CUT = ("mlp", "alexnet", "vgg16", "bert", "fnet", "gpt2", "mixture", "two_towers", "hard")
_LEAST_SHARD_BYTES = 1024


@dataclass(frozen=True)
class Drawn:
    """A placement that is drawn on so many ranks, with messages over these rails. seed: of all
    else."""

    ranks: int
    rails: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class CutStep:
    """A step of one of MODELS, and its placements. seed: of the model."""

    model: str
    micro_batches: int
    shards: int
    seed: int
    placements: tuple[Drawn, ...]

    def __str__(self) -> str:
        return f"{self.model}, {self.micro_batches} micro-batches, {self.shards} shards"


def cut_steps() -> tuple[CutStep, ...]:
    """Every model in every number of micro-batches, and in every number of shards in one of these;
    each on every number of ranks."""
    choose, found = random.Random(23), list[CutStep]()
    for name in CUT:
        counts = choose.sample(SHARDS, len(SHARDS))
        for micro_batches, count in zip(MICRO_BATCHES, counts, strict=True):
            placements = tuple(
                Drawn(ranks, RAILS[: choose.choice((1, 2))], choose.randrange(1000))
                for ranks in RANKS
            )
            found.append(CutStep(name, micro_batches, count, len(found), placements))
    return tuple(found)


def tables(pictures: Path | None) -> Iterable[Table]:
    rows, count, every = [], 0, 0
    for step in cut_steps():
        wrong = differences(step)
        of = len(step.placements)
        count, every = count + of - len(wrong), every + of
        equal = "; ".join(wrong) or "yes"
        rails = ", ".join(str(len(drawn.rails)) for drawn in step.placements)
        rows.append([step.model, str(step.micro_batches), str(step.shards), rails, equal])
    ranks = ", ".join(map(str, RANKS))
    yield Table(
        title="1. Any placement of a step in parts trains as one rank",
        columns=("model", "micro-batches", "shards", f"rails on {ranks} ranks", "equal"),
        rows=rows,
        notes=(
            f"{count} of {every} random placements on {ranks} ranks equal one rank that runs the "
            f"same program after {STEPS} steps of batch {BATCH}, to the last bit (AdamW). Weights "
            f"from {2 * _LEAST_SHARD_BYTES} bytes on are cut into shards, and smaller ones of "
            "whole vectors have replicas. Placements are drawn as in the first table, with bundles "
            "in two of three. Relays, operator splits and replicas of large weights are not drawn, "
            "because they are not built "
            "([the reasons](../design/parallelisms.md#what-was-measured-and-is-not-built)).",
        ),
    )


def pool_of(step: CutStep) -> RankPool:
    return RankPool(
        MODELS[step.model], BATCH, OPTIMIZER, step.seed, small_shards,
        accumulate=step.micro_batches, shards=step.shards,
    )  # fmt: skip


def differences(step: CutStep, steps: int = STEPS) -> list[str]:
    """Where the placements of a step differ from one rank."""
    wrong = []
    with pool_of(step) as pool:
        if (step.shards > 1) != any("_rows_" in name for name in pool.graph.ids):
            wrong.append("its weights are not cut into shards as it says")
        one = pool.run(on_one_device(pool.graph), steps)
        for drawn in step.placements:
            began = time.monotonic()
            placement = random_placement(pool.graph, drawn.ranks, drawn.rails, drawn.seed)
            found = one.differences(pool.run(placement, steps, drawn.rails))
            if found:
                wrong.append(f"{drawn.ranks} ranks, seed {drawn.seed}: {found[0]}")
            said = f"DIFFER: {', '.join(found[:4])}" if found else "equal"
            took = f"{len(placement.messages)} messages, {time.monotonic() - began:.1f} s"
            print(f"{step}, {drawn.ranks} ranks: {said}, {took}", file=sys.stderr, flush=True)
    return wrong


def small_shards() -> None:
    """Lets small models have shards, too."""
    shards.LEAST_SHARD_BYTES, shards.LEAST_SHARD_PART = _LEAST_SHARD_BYTES, 0.0
