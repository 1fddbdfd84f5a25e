"""Makes a trace of a placement's simulated step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from placewire.optimizer.explain.summary import timeline_of
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle, bundles_of
from placewire.optimizer.simulation.timeline import Timeline
from placewire.optimizer.trace.document import (
    COMPUTE,
    Direction,
    Span,
    Trace,
    TracedDevice,
    TraceError,
    rail_row,
)


def predicted_trace(graph: OperatorGraph, placement: Placement, steps: Sequence[int]) -> Trace:
    """Shows the prediction at each of these steps. The placement must pass `check`.

    Raises TraceError where the step never ends.
    """
    problem, timeline = timeline_of(graph, placement)
    bundles = bundles_of(graph, placement)
    if not np.isfinite(timeline.step_seconds):
        raise TraceError("the predicted step never ends: two servers exchange messages at no rate")
    names = problem.cluster.device_names
    spans: dict[str, list[Span]] = {name: [] for name in names}
    for name, order in zip(names, timeline.order, strict=True):
        spans[name] += _computed(graph, timeline, order)
    for device, span in _transferred(graph, bundles, problem, timeline):
        spans[names[device]].append(span)
    devices = tuple(
        TracedDevice(
            rank=rank,
            device=name,
            source="predicted",
            step_seconds=dict.fromkeys(steps, timeline.step_seconds),
            spans=tuple(replace(span, step=step) for step in steps for span in spans[name]),
        )
        for rank, name in enumerate(placement.devices_used)
    )
    return Trace(graph.structure_hash, devices)


def _computed(graph: OperatorGraph, timeline: Timeline, order: Sequence[int]) -> Iterator[Span]:
    for i in order:
        if i >= graph.operator_count:
            continue  # a bundle: ranks do not count its copies as an operator
        start, finish = float(timeline.start[i]), float(timeline.finish[i])
        yield Span(0, COMPUTE, graph.ids[i], start, finish, {"type": graph.types[i]})


def _transferred(
    graph: OperatorGraph, bundles: Sequence[Bundle], problem: Problem, timeline: Timeline
) -> Iterator[tuple[int, Span]]:
    """(device, span) of every part of every message, at its sender and at its receiver. As ranks
    do, it names a bundle by the tensor that is made last. problem: with the bundles."""
    names = problem.cluster.device_names
    parts = zip(
        timeline.messages,
        timeline.part_start_seconds.tolist(),
        timeline.part_finish_seconds.tolist(),
        strict=True,
    )
    for message, starts, finishes in parts:
        tensor = message.tensor
        if tensor >= graph.tensor_count:
            tensor = bundles[tensor - graph.tensor_count].tensors[-1]
        producer = int(graph.tensor_producer[tensor])
        output = int(np.flatnonzero(graph.output_tensors(producer) == tensor)[0])
        shares = dict(enumerate(message.rails)) or {0: 1.0}
        for rail, share in shares.items():
            if not share:
                continue
            name = problem.cluster.rails[rail] if message.rails else ""
            details = {
                "bytes": round(share * int(problem.graph.tensor_bytes[message.tensor])),
                "send_order": message.send_order,
                "output": output,
                "queued_microseconds": round((starts[rail] - message.queued_seconds) * 1e6, 3),
            }
            ends: tuple[tuple[Direction, int, int], ...] = (
                ("sends", message.source, message.destination),
                ("receives", message.destination, message.source),
            )
            for direction, here, peer in ends:
                row, told = rail_row(name, direction), {"peer": names[peer], **details}
                yield here, Span(0, row, graph.ids[producer], starts[rail], finishes[rail], told)
