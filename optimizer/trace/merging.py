"""Merges the traces of one job's ranks, aligned at each step's barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placewire.optimizer.trace.document import Span, Trace, TracedDevice, TraceError
from placewire.optimizer.trace.trace_file import Detail

# Identifies a part of a message: step, producer, output, sender, receiver, rail.
_Part = tuple[int, str, Detail, str, str, str]


def merged(traces: Sequence[Trace]) -> Trace:
    """All devices of all traces, by rank. A receive begins when its sender handed the message over,
    as exactly as the barrier aligns two clocks; the receiver itself knows only when it had to wait.

    Raises TraceError where two traces are of different graphs, or of the same device.
    """
    structures = {trace.structure_hash for trace in traces}
    if len(structures) > 1:
        shown = ", ".join(sorted(structure[:12] for structure in structures))
        raise TraceError(f"the traces are of different graphs: {shown}")
    devices = sorted((d for t in traces for d in t.devices), key=lambda d: (d.rank, d.source))
    seen: set[tuple[int, str]] = set()
    for device in devices:
        if (device.rank, device.source) in seen:
            raise TraceError(f"rank {device.rank} ({device.device}) is there twice; drop a trace")
        seen.add((device.rank, device.source))
    sent = {
        _part(device, span): span.start_seconds
        for device in devices
        if device.source == "measured"
        for span in device.spans
        if span.row.endswith(" sends")
    }
    begun = (
        replace(device, spans=tuple(_begun(device, span, sent) for span in device.spans))
        for device in devices
    )
    return Trace(structures.pop(), tuple(begun))


def _part(device: TracedDevice, span: Span) -> _Part:
    rail, _, direction = span.row.rpartition(" ")
    ends = device.device, str(span.details["peer"])
    source, destination = ends if direction == "sends" else ends[::-1]
    return span.step, span.name, span.details["output"], source, destination, rail


def _begun(device: TracedDevice, span: Span, sent: dict[_Part, float]) -> Span:
    if device.source == "predicted" or not span.row.endswith(" receives"):
        return span
    start = sent.get(_part(device, span), span.start_seconds)
    return replace(span, start_seconds=min(start, span.finish_seconds))
