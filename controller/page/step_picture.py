"""What the page shows of the placed step: which layers are where, and each device's timeline.

It is read from the files that a report names, which another run may have replaced since.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from placewire.controller.page.chart import Scale
from placewire.controller.records.report import RunReport, allocation_digest
from placewire.optimizer.explain.parallelism import Stage, parallelism_words, stages
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.halves import forward_half, updates
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph
from placewire.optimizer.placement import Placement, PlacementError, load_placement
from placewire.optimizer.quantities import format_seconds
from placewire.optimizer.trace.document import (
    COMPUTE,
    Span,
    Trace,
    TracedDevice,
    TraceError,
    trace_from_json,
)
from placewire.optimizer.trace.predicted import predicted_trace

WIDTH = 900
# A device's time is painted in this many columns, each by what took most of it.
_COLUMNS, _COLUMNS_OF_MANY, _MANY_DEVICES = 600, 300, 16
# A message is received while it is under way; it is sent once the kernel has it.
_RECEIVES = " receives"
_IDLE = -1
# Levels of how many of a device's NICs receive at a time.
_LEVELS = 4


@dataclass(frozen=True)
class Bar:
    """x, width: in pixels of WIDTH. kind: `forward`, `backward`, `update` or `receive`.
    micro_batch: None where it works for no single one. level: of what is received, how many of the
    NICs are busy, 1 to 4."""

    x: float
    width: float
    kind: str
    micro_batch: int | None
    level: int
    title: str


@dataclass(frozen=True)
class Lane:
    device: str
    computes: tuple[Bar, ...]
    receives: tuple[Bar, ...]
    busy: str


@dataclass(frozen=True)
class Timeline:
    """source: `predicted` or `measured`. ticks: (pixel, words) of its axis."""

    source: str
    step: str
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class StepPicture:
    """words: what the placement amounts to, such as `data parallelism over 4 devices`."""

    devices: tuple[str, ...]
    stages: tuple[Stage, ...]
    words: str
    timelines: tuple[Timeline, ...]


class NoPicture(Exception):
    """Why there is none, in a sentence."""


def step_picture(report: RunReport) -> StepPicture:
    """Raises NoPicture where a file of the report's is gone, broken, or of another run by now."""
    try:
        graph = load_graph(
            _file(report, "scored_graph" if "scored_graph" in report.files else "graph")
        )
        placement = load_placement(_file(report, "placement"))
    except (OSError, GraphError, PlacementError) as error:
        raise NoPicture(f"a file of this run cannot be read: {error}") from error
    if graph.structure_hash != placement.structure_hash:
        raise NoPicture("the placement's file is of another graph by now")
    if report.allocation_digest not in (None, allocation_digest(placement)):
        raise NoPicture("the placement's file is of another run by now")
    try:
        predicted = predicted_trace(graph, placement, [0])
    except TraceError as error:
        raise NoPicture(str(error)) from error
    kinds = _Kinds(graph)
    found = stages(graph, placement)
    timelines = [_timeline(predicted.devices, placement, kinds)]
    if (traced := _measured(report, graph)) is not None:
        timelines.append(_timeline(traced.devices, placement, kinds))
    return StepPicture(placement.devices_used, found, parallelism_words(found), tuple(timelines))


def _file(report: RunReport, name: str) -> Path:
    """Raises NoPicture where it is no file: a report may name anything, and a pipe would be waited
    for without end."""
    file = Path(report.files.get(name, ""))
    if not file.is_file():
        raise NoPicture(f"this run's {name} is not there any more: {file}")
    return file


def _measured(report: RunReport, graph: OperatorGraph) -> Trace | None:
    """The measured devices of the run's trace; None where there is none that fits."""
    if "trace" not in report.files:
        return None
    try:
        file = _file(report, "trace")
        trace = trace_from_json(read_json(file), where=str(file))
    except (OSError, GraphError, TraceError, NoPicture):
        return None
    measured = tuple(d for d in trace.devices if d.source == "measured" and d.step_seconds)
    if trace.structure_hash != graph.structure_hash or not measured:
        return None
    return Trace(trace.structure_hash, measured)


class _Kinds:
    """By an operator's name, its kind, micro-batch and layer."""

    def __init__(self, graph: OperatorGraph) -> None:
        self._graph, forward = graph, forward_half(graph)
        self._forward = np.zeros(graph.operator_count, bool) if forward is None else forward
        self._update = updates(graph)

    def of(self, name: str) -> tuple[str, int | None, str]:
        i = self._graph.index_of.get(name)
        if i is None:
            return "update", None, ""
        micro_batch = int(self._graph.micro_batch[i])
        kind = "forward" if self._forward[i] else "backward"
        kind = "update" if self._update[i] else kind
        return kind, None if micro_batch < 0 else micro_batch, self._graph.modules[i]


def _timeline(devices: tuple[TracedDevice, ...], placement: Placement, kinds: _Kinds) -> Timeline:
    """The last step of a trace."""
    step = max(step for device in devices for step in device.step_seconds)
    longest = max(device.step_seconds.get(step, 0.0) for device in devices)
    columns = _COLUMNS if len(devices) <= _MANY_DEVICES else _COLUMNS_OF_MANY
    rails = max(len(placement.cluster.rails), 1)
    lanes = []
    for device in devices:
        spans = [span for span in device.spans if span.step == step]
        computing = [span for span in spans if span.row == COMPUTE]
        receiving = [span for span in spans if span.row.endswith(_RECEIVES)]
        busy = sum(span.finish_seconds - span.start_seconds for span in computing)
        lanes.append(
            Lane(
                device.device,
                tuple(_computes(computing, longest, columns, kinds)),
                tuple(_receives(receiving, longest, columns, rails)),
                f"computes {busy / longest:.0%} of the step" if longest > 0 else "",
            )
        )
    x = Scale(0.0, longest, WIDTH)
    ticks = tuple((x.at(seconds), format_seconds(seconds)) for seconds in x.ticks(5))
    return Timeline(devices[0].source, format_seconds(longest), tuple(lanes), ticks)


def _computes(
    spans: Iterable[Span], step_seconds: float, columns: int, kinds: _Kinds
) -> Iterator[Bar]:
    """Neighbouring columns that work for the same half and micro-batch are one bar."""
    keys = dict[tuple[str, int | None], int]()
    painted = np.zeros((columns, 0))
    layers: dict[int, dict[int, str]] = {}
    for span in spans:
        kind, micro_batch, module = kinds.of(span.name)
        key = keys.setdefault((kind, micro_batch), len(keys))
        if key == painted.shape[1]:
            painted = np.hstack([painted, np.zeros((columns, 1))])
        for column, part in _covered(span, step_seconds, columns):
            painted[column, key] += part
            layers.setdefault(column, {})[key] = module
    named = list(keys)
    if not named:
        return
    fullest = np.where(painted.max(axis=1) > 0, painted.argmax(axis=1), _IDLE)
    for key, first, count in _runs(fullest.tolist()):
        kind, micro_batch = named[key]
        inside = [layers.get(c, {}).get(key, "") for c in (first, first + count - 1)]
        yield _bar(first, count, columns, kind, micro_batch, 0, _title(kind, micro_batch, inside))


def _title(kind: str, micro_batch: int | None, inside: list[str]) -> str:
    words = kind if micro_batch is None else f"{kind}, micro-batch {micro_batch}"
    modules = " to ".join(dict.fromkeys(module for module in inside if module))
    return f"{words}: {modules}" if modules else words


def _receives(
    spans: Iterable[Span], step_seconds: float, columns: int, rails: int
) -> Iterator[Bar]:
    painted = np.zeros(columns)
    for span in spans:
        for column, part in _covered(span, step_seconds, columns):
            painted[column] += part
    levels = np.ceil(np.minimum(painted / rails, 1.0) * _LEVELS - 1e-6).astype(int)
    for level, first, count in _runs(np.where(levels > 0, levels, _IDLE).tolist()):
        words = f"receives on about {level / _LEVELS:.0%} of its NICs"
        yield _bar(first, count, columns, "receive", None, level, words)


def _covered(span: Span, step_seconds: float, columns: int) -> Iterator[tuple[int, float]]:
    """(column, the part of it) that a span covers."""
    if step_seconds <= 0:
        return
    low = min(max(span.start_seconds / step_seconds, 0.0), 1.0) * columns
    high = min(max(span.finish_seconds / step_seconds, 0.0), 1.0) * columns
    for column in range(int(low), min(columns, math.ceil(high))):
        yield column, min(high, column + 1) - max(low, column)


def _runs(values: list[int]) -> Iterator[tuple[int, int, int]]:
    """(value, first position, count) of equal neighbours, without the idle ones."""
    at = 0
    for value, group in groupby(values):
        count = len(list(group))
        if value != _IDLE:
            yield value, at, count
        at += count


def _bar(
    first: int, count: int, columns: int, kind: str, micro_batch: int | None, level: int, title: str
) -> Bar:
    pixel = WIDTH / columns
    return Bar(round(first * pixel, 2), round(count * pixel, 2), kind, micro_batch, level, title)
