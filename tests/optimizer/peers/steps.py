"""Training steps in micro-batches, for peers: a small chain of layers, and captured models."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.step import captured_step
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.profile.modelled import with_modelled_seconds
from tests.optimizer.cases import cluster

WEIGHT = 120_000
# Milliseconds of an operator.
FORWARD, BACKWARD, UPDATE, LOSS, SUM, MASK = 5.0, 10.0, 2.0, 1.0, 0.1, 0.01
GPU = "rtx4080s"
BATCH = 16
MODELS = ("mlp", "transformer", "gpt2", "bert", "resnet50", "alexnet")


def chain(
    parts: int,
    layers: int = 4,
    *,
    blocks: int | None = None,
    again: bool = False,
    summed: str = "aten.add.Tensor",
    loss: str = "loss",
    masks: bool = False,
    shards: int = 1,
) -> OperatorGraph:
    """Layers one after the other, in micro-batches whose gradients are added before the updates.
    blocks: how many of the first layers are numbered ones, all by default. again: layer 0 runs once
    more after the last one. summed: the type of the sums. loss: which operator notes call so.
    masks: layer k reads k{k}, too, which is made of the constant c{k} for all micro-batches.
    shards: into how many each weight is cut; each micro-batch joins them."""
    rows: list[OperatorRow] = []
    readers: dict[str, list[str]] = defaultdict(list)
    size: dict[str, int] = {}
    share = WEIGHT // shards

    def operator(name: str, kind: str, millis: float, reads: list[str], sends: int = 1000) -> str:
        _, micro, number = name.partition("_m")
        weight = share if kind == "parameter" else 0
        owner = name.lstrip("updatew") if kind in ("parameter", "update") else ""
        layer = int(owner.partition(".")[0]) if owner else None
        inside = weight and layer is not None and (blocks is None or layer < blocks)
        rows.append(
            OperatorRow(
                name, kind, {"cpu": millis / 1e3, "fast": millis / 3e3}, weight_bytes=weight,
                activation_bytes=0 if weight else sends, micro_batch=int(number) if micro else None,
                module=f"model.layers.{layer}" if inside else "model",
                colocation=f"w{owner}" if owner else None,
            )
        )  # fmt: skip
        size[name] = sends
        for one in reads:
            readers[one].append(name)
        return name

    def joined(k: int, m: int) -> str:
        if shards == 1:
            return weights[k][0]
        return operator(f"j{k}_m{m}", "aten.cat.default", MASK, weights[k], WEIGHT)

    def rows_of(gradient: str, owner: str, m: int) -> str:
        if shards == 1:
            return gradient
        return operator(f"r{owner}_m{m}", "aten.slice.Tensor", 0, [gradient], share)

    suffixes = [f".{j}" for j in range(shards)] if shards > 1 else [""]
    owners = [[f"{k}{suffix}" for suffix in suffixes] for k in range(layers)]
    weights = [[operator(f"w{one}", "parameter", 0, [], share) for one in some] for some in owners]
    made_once: list[list[str]] = [[] for _ in range(layers)]
    for k, read in enumerate(made_once if masks else []):
        read.append(operator(f"k{k}", "mask", MASK, [operator(f"c{k}", "constant", MASK, [])]))
    path = [*range(layers), *([0] if again else [])]
    gradients: dict[str, list[str]] = defaultdict(list)
    losses = []
    for m in range(parts):
        below = operator(f"x_m{m}", "input", 0, [])
        whole = [joined(k, m) for k in range(layers)]
        for at, k in enumerate(path):
            below = operator(f"f{at}_m{m}", "mm", FORWARD, [below, whole[k], *made_once[k]])
        above = operator(f"l_m{m}", "loss", LOSS, [below])
        losses.append(above)
        made: dict[int, str] = {}
        for at, k in reversed(list(enumerate(path))):
            below = f"f{at - 1}_m{m}" if at else f"x_m{m}"
            above = operator(f"b{at}_m{m}", "mm", BACKWARD / 2, [above, whole[k]])
            own = operator(f"g{at}_m{m}", "mm", BACKWARD / 2, [above, below], WEIGHT)
            if k in made:
                own = operator(f"both{k}_m{m}", "aten.add.Tensor", 0, [made[k], own], WEIGHT)
            made[k] = own
        for k, name in made.items():
            for one in owners[k]:
                gradients[one].append(rows_of(name, one, m))
    operator("loss", "mean", 0, losses, 8)
    for one in (one for some in owners for one in some):
        total, *others = gradients[one]
        for m, other in enumerate(others, start=1):
            total = operator(f"sum{m}.{one}", summed, SUM / shards, [total, other], share)
        operator(f"update{one}", "update", UPDATE / shards, [total, f"w{one}"], 0)
    tensors = [TensorRow(name, tuple(them), size[name]) for name, them in readers.items()]
    notes = {"loss": loss, "batch": BATCH, "accumulate": parts, "shards": shards}
    return build_graph(rows, tensors, device_types=("cpu", "fast"), notes=notes)


@cache
def captured(
    model: str,
    parts: int,
    clip_norm: float | None = None,
    shards: int = 1,
    decompose: bool = False,
) -> OperatorGraph:
    """A small model's step at batch 16, with the modelled times of a GPU."""
    function = "training_step" if model == "mlp" else "training_step_small"
    path = f"placewire.examples.models.{model}:{function}"
    choice = OptimizerChoice(clip_norm=clip_norm)
    step = captured_step(
        CaptureOptions(path, BATCH, choice, 0, accumulate=parts, shards=shards, decompose=decompose)
    )
    return with_modelled_seconds(step.operators, [GPU])


def gpus(
    servers: int, gigabits: float = 10.0, *, devices: int = 1, rails: int = 1, memory: int = 1 << 34
) -> Cluster:
    rates = [gigabits * 1e9] * rails
    types = [GPU] * servers
    return cluster(
        servers, rates, devices=devices, memory=memory, latency=1e-5, types=types, intra=1e11
    )


def parameter_bytes(graph: OperatorGraph) -> int:
    return sum(
        max(int(graph.tensor_bytes[e]) for e in graph.output_tensors(i))
        for i, kind in enumerate(graph.types)
        if kind == "parameter"
    )
