"""Finds in a placement what the field has words for: data parallelism, pipeline stages, shards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewire.optimizer.graph.blocks import block_of
from placewire.optimizer.graph.halves import updates
from placewire.optimizer.graph.operator_graph import BUFFER, PARAMETER, OperatorGraph
from placewire.optimizer.placement import Placement

# A device runs a micro-batch of a layer where it does this part of the layer's work for it.
_NEARLY_ALL = 0.8
# Operators that stand for what exists before a step begins: they compute nothing.
_HOLDING, _GIVEN = (PARAMETER, BUFFER), "input"
_MOST_NAMES = 4
_OF_MANY = {"data-parallel": "data-parallel", "by operators": "spread by operators"}


@dataclass(frozen=True)
class Stage:
    """Neighbouring layers that are spread alike. layers: their module paths, in the order of the
    step. micro_batches: by device, how many micro-batches of these layers it runs. spread: of how
    many micro-batches several devices share the operators. devices: those that run any. weights:
    those that hold and update weights of these layers."""

    layers: tuple[str, ...]
    micro_batches: Mapping[str, int]
    spread: int
    devices: tuple[str, ...]
    weights: tuple[str, ...]

    @property
    def way(self) -> str:
        """One of `alone`, `data-parallel`, `by operators`."""
        if self.spread or not self.micro_batches:
            return "by operators"
        return "data-parallel" if len(self.micro_batches) > 1 else "alone"


@dataclass
class _Layer:
    """first: the position of its first operator that computes. seconds: by micro-batch, what each
    device works for it. holders: of its weights."""

    first: int | None = None
    seconds: dict[int, dict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    holders: set[str] = field(default_factory=set)

    def stage(self, name: str) -> Stage:
        homes: Counter[str] = Counter()
        spread, devices = 0, set[str]()
        for by_device in self.seconds.values():
            home = max(by_device, key=lambda device: by_device[device])
            if by_device[home] >= _NEARLY_ALL * sum(by_device.values()):
                homes[home] += 1
                devices.add(home)
            else:
                spread += 1
                devices |= set(by_device)
        return Stage(
            (name,), dict(sorted(homes.items())), spread, tuple(sorted(devices)),
            tuple(sorted(self.holders)),
        )  # fmt: skip


def stages(graph: OperatorGraph, placement: Placement) -> tuple[Stage, ...]:
    """Layers are the blocks that repeat in the model's module paths, and what lies between them; a
    graph that names no modules has none. A step without micro-batches counts as one of these."""
    kinds = [one.type for server in placement.cluster.servers for one in server.devices]
    column = {
        device: graph.device_types.index(kind)
        for device, kind in zip(placement.cluster.device_names, kinds, strict=True)
        if kind in graph.device_types
    }
    whole = int(graph.micro_batch.max(initial=-1)) < 0
    update = updates(graph)
    layers: dict[str, _Layer] = defaultdict(_Layer)
    for at, i in enumerate(graph.topological_order.tolist()):
        name = block_of(graph.modules[i]) or ".".join(graph.modules[i].split(".")[:2])
        if "." not in name:
            continue  # between layers, as some additions are
        device, layer = placement.operators[graph.ids[i]], layers[name]
        if graph.types[i] in _HOLDING:
            layer.holders.add(device)
        elif graph.types[i] != _GIVEN and (graph.micro_batch[i] >= 0 or (whole and not update[i])):
            layer.first = at if layer.first is None else layer.first
            seconds = float(graph.seconds[i, column[device]])
            layer.seconds[int(graph.micro_batch[i])][device] += seconds
    ran = sorted((layer.first, name) for name, layer in layers.items() if layer.first is not None)
    found: list[Stage] = []
    for _, name in ran:
        stage = layers[name].stage(name)
        if found and _alike(found[-1], stage):
            found[-1] = _joined(found[-1], stage)
        else:
            found.append(stage)
    return tuple(found)


def _alike(one: Stage, other: Stage) -> bool:
    if one.way == "by operators":
        return other.way == one.way and other.devices == one.devices
    return one.way == other.way and one.micro_batches == other.micro_batches


def _joined(one: Stage, other: Stage) -> Stage:
    weights = tuple(sorted({*one.weights, *other.weights}))
    spread = max(one.spread, other.spread)
    return Stage(one.layers + other.layers, one.micro_batches, spread, one.devices, weights)


def parallelism_words(found: Sequence[Stage]) -> str:
    """What the stages amount to, such as `data parallelism over 4 devices`; "" for no stages."""
    if not found:
        return ""
    groups: list[Stage] = []
    for stage in found:
        if not groups or groups[-1].devices != stage.devices:
            groups.append(stage)
    if len(groups) == 1:
        (only,) = groups
        over = f"over {len(only.devices)} devices"
        return {
            "alone": "one device", "data-parallel": f"data parallelism {over}",
            "by operators": f"each layer spread by operators {over}",
        }[only.way]  # fmt: skip
    devices = {device for stage in groups for device in stage.devices}
    words = f"a pipeline of {len(groups)} stages"
    if len(groups) > len(devices):
        words += f" on {len(devices)} devices"
    ways = Counter(stage.way for stage in groups)
    parts = [f"{n} of them {_OF_MANY[way]}" for way, n in ways.items() if way != "alone"]
    return ", ".join([words, *parts])


def stage_words(stage: Stage) -> str:
    """One line, such as `model.layers.0-5: data-parallel over s1/0, s2/0, 4 micro-batches each`."""
    where = _devices(stage.devices)
    if stage.way == "alone":
        words = f"on {where}"
    elif stage.way == "by operators":
        words = f"spread by operators over {where}"
    else:
        counts = list(stage.micro_batches.values())
        each = f"{counts[0]} each" if len(set(counts)) == 1 else ", ".join(map(str, counts))
        words = f"data-parallel over {where}, micro-batches {each}"
    if stage.weights and stage.weights != stage.devices:
        words += f"; weights on {_devices(stage.weights)}"
    elif len(stage.weights) > 1:
        words += "; weights spread over these"
    return f"{layers_words(stage.layers)}: {words}"


def _devices(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} devices"


def layers_words(names: Sequence[str]) -> str:
    """model.layers.0, model.layers.1, model.norm -> model.layers.0-1, model.norm"""
    runs: list[list[str]] = []
    for name in names:
        path, _, number = name.rpartition(".")
        if runs and number.isdigit() and runs[-1][0] == path:
            runs[-1][2] = number
        else:
            runs.append([path, number, number] if number.isdigit() else [name, "", ""])
    words = [
        path + (f".{first}" if first else "") + (f"-{last}" if last != first else "")
        for path, first, last in runs
    ]
    if len(words) > _MOST_NAMES:
        words = [*words[:2], "…", words[-1]]
    return ", ".join(words)
