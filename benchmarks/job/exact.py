"""Item 1: random placements of the example models against one rank, and one rank against PyTorch.

Equal means torch.equal for every parameter, buffer and tensor of optimizer state after STEPS steps,
and the same losses.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.job.eager import differences_from_eager
from benchmarks.job.random_placements import on_one_device, random_placement
from benchmarks.job.rank_pool import RankPool
from benchmarks.table import Table
from placewire.job.contract.specification import OptimizerSpec, ScheduleSpec

STEPS = 20
BATCH = 4
RANKS = (2, 3, 4)
# These keep their dropout.
MODELS = {
    "mlp": "placewire.examples.models.mlp:training_step",
    **{
        name: f"placewire.examples.models.{name}:training_step_small"
        for name in (
            "alexnet", "vgg16", "resnet50", "inception", "bert", "fnet", "gpt2", "mixture",
            "two_towers",
        )
    },
    "hard": "tests.models.hard:training_step",
}  # fmt: skip
# These have a dropout that drops nothing, so that they can be compared with PyTorch.
WITHOUT_DROPOUT = (
    "mlp", "alexnet", "vgg", "vgg_batch_norm", "resnet50", "inception_v3", "bert", "fnet", "gpt2",
    "gpt2_fused", "mixture", "two_towers",
)  # fmt: skip
CLIPPED = "AdamW, clipped, cosine"
OPTIMIZERS = {
    "SGD, momentum": OptimizerSpec(name="sgd", lr=0.05, options={"momentum": 0.9}),
    "AdamW": OptimizerSpec(name="adamw", lr=1e-2),
    CLIPPED: OptimizerSpec(
        name="adamw", lr=1e-2, clip_norm=0.5,
        schedule=ScheduleSpec(name="cosine", warmup_steps=5, total_steps=STEPS),
    ),
}  # fmt: skip
# The threads of each rank, where it has more than one.
THREADS = {"alexnet": 2, "fnet": 2}
# Only these run with the third optimizer, whose norm is over the parameters of all ranks.
WITH_CLIPPING = ("alexnet", "gpt2", "mixture", "hard")


def tables(pictures: Path | None) -> Iterable[Table]:
    yield placements_table()
    yield eager_table()


def placements_table() -> Table:
    rows, count = [], 0
    for seed, (name, title) in enumerate(_combinations(tuple(MODELS))):
        row, equal = _placed(name, title, seed)
        rows.append(row)
        count += equal
    return Table(
        title="1. Any placement trains as one rank",
        columns=(
            "model", "operators", "optimizer", "tensors",
            *(f"messages, {ranks} ranks" for ranks in RANKS), "equal",
        ),
        rows=rows,
        notes=(
            f"{count} of {len(rows) * len(RANKS)} random placements equal one rank after {STEPS} "
            f"steps of batch {BATCH}, to the last bit: losses, and the tensors (parameters, "
            "buffers, optimizer state). Small variants, with their dropout; one thread a rank "
            f"({', '.join(THREADS)}: 2), gloo over loopback. Half of the placements draw a device "
            "for stretches of operators, half for each. In two of three, tensors "
            "travel together at random. Messages are cut at random over one or two "
            "rails, and leave as they come or in chunks, the urgent ones first.",
        ),
    )  # fmt: skip


def _combinations(models: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The pairs of a model and the title of an optimizer."""
    for name in models:
        for title in OPTIMIZERS:
            if title != CLIPPED or name in WITH_CLIPPING:
                yield name, title


def _placed(name: str, title: str, seed: int) -> tuple[list[str], int]:
    """Returns a row, and how many of its placements are equal."""
    threads = THREADS.get(name, 1)
    with RankPool(MODELS[name], BATCH, OPTIMIZERS[title], seed) as pool:
        one = pool.run(on_one_device(pool.graph), STEPS, threads=threads)
        messages, wrong = [], []
        for ranks in RANKS:
            began = time.monotonic()
            case = seed + ranks
            rails = ("a", "b")[: 1 + case // 2 % 2]
            placement = random_placement(pool.graph, ranks, rails, case)
            found = one.differences(pool.run(placement, STEPS, rails, threads=threads))
            messages.append(str(len(placement.messages)))
            if found:
                wrong.append(f"{ranks}: {found[0]}")
            _say(f"{name}, {title}, {ranks} ranks", found, began)
        operators, tensors = str(pool.graph.operator_count), str(len(one.tensors))
    row = [name, operators, title, tensors, *messages, "; ".join(wrong) or "yes"]
    return row, len(RANKS) - len(wrong)


def eager_table() -> Table:
    rows = []
    for name, title in _combinations(WITHOUT_DROPOUT):
        began, optimizer = time.monotonic(), OPTIMIZERS[title]
        model = f"tests.models.small:{name}"
        with RankPool(model, BATCH, optimizer) as pool:
            one = pool.run(on_one_device(pool.graph), STEPS)
            found = differences_from_eager(one, pool.names, model, BATCH, optimizer, 0)
        losses = f"{one.losses[0]:.3f} to {one.losses[-1]:.3f}" if one.losses else "none"
        rows.append([name, title, losses, str(len(one.tensors)), found[0] if found else "yes"])
        _say(f"{name}, {title}, eager", found, began)
    return Table(
        title="1. One rank trains as PyTorch",
        columns=("model", "optimizer", "loss", "tensors", "equal"),
        rows=rows,
        notes=(
            f"The captured step on one rank against the same modules in plain PyTorch with fused "
            f"optimizers, {STEPS} steps of batch {BATCH}, one thread. Dropout draws its masks and "
            "drops nothing (gpt2_fused: dropout 0): PyTorch draws other masks.",
        ),
    )


def _say(case: str, found: tuple[str, ...], began: float) -> None:
    verdict = f"DIFFER: {', '.join(found[:4])}" if found else "equal"
    print(f"{case}: {verdict}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
