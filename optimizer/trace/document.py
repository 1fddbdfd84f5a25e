"""Writes and reads traces of a few steps, as files that trace viewers open.

The file is the JSON object form of Google's Trace Event Format: "X" events with `ts` and `dur` in
microseconds, "M" events that name processes and threads. A process is one device, predicted or
measured; its threads are rows: the step, what it computes, and what each rail sends and receives.

Times of a span count from its step's barrier. In the file the steps follow one another, each as
long as it took on its slowest device; the time between two steps (data, checkpoints) is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from placewire.optimizer.graph.validation_message import first_mistake
from placewire.optimizer.trace.trace_file import (
    VERSION,
    Detail,
    DeviceEntry,
    Source,
    SpanEvent,
    TraceFile,
)

STEP, COMPUTE = "step", "compute"
# The key in a compute span's details for the memory that its operator held only while it ran.
WORKSPACE = "workspace_bytes"
Direction = Literal["sends", "receives"]


class TraceError(ValueError):
    """A file is no trace of Placewire, or is not of the same job as others."""


@dataclass(frozen=True)
class Span:
    """name: the id of the operator, or of a message's producer. Times since the step's barrier."""

    step: int
    row: str
    name: str
    start_seconds: float
    finish_seconds: float
    details: Mapping[str, Detail]


@dataclass(frozen=True)
class TracedDevice:
    """step_seconds: how long each traced step took on the device."""

    rank: int
    device: str
    source: Source
    step_seconds: Mapping[int, float]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Trace:
    """structure_hash: of the graph whose steps were traced."""

    structure_hash: str
    devices: tuple[TracedDevice, ...]


def rail_row(rail: str, direction: Direction) -> str:
    """The name of a row; rail "" is a path that uses no NIC."""
    return f"{rail or 'past the NICs'} {direction}"


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """Events in order of time, after those that name processes and threads."""
    begins = _begins(trace.devices)
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for device in trace.devices:
        pid = _process(device.rank, device.source)
        names += _name(pid, 0, "process", f"{device.device} {device.source}", pid)
        for tid, (row, spans) in enumerate(_rows(device)):
            names += _name(pid, tid, "thread", row, tid)
            events += [_event(pid, tid, span, begins) for span in spans]
    events.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    return {
        "traceEvents": names + events,
        "displayTimeUnit": "ms",
        "otherData": {
            "version": VERSION,
            "structure_hash": trace.structure_hash,
            "steps": {str(step): at / 1000 for step, at in begins.items()},
            "devices": [
                {"rank": d.rank, "device": d.device, "source": d.source} for d in trace.devices
            ],
        },
    }


def trace_from_json(document: Any, where: str = "trace") -> Trace:
    """Reads what trace_to_json wrote. Raises TraceError with the place of what is wrong."""
    try:
        file = TraceFile.model_validate(document)
    except ValidationError as error:
        raise TraceError(f"{where}: no trace of Placewire: {first_mistake(error)}") from error
    spans = [
        (event.pid, _span(event, file.header.steps))
        for event in file.events
        if isinstance(event, SpanEvent)
    ]
    devices = tuple(_device(entry, spans) for entry in file.header.devices)
    return Trace(file.header.structure_hash, devices)


def _begins(devices: Sequence[TracedDevice]) -> dict[int, int]:
    """The time of each step's barrier in the file, in nanoseconds."""
    longest: dict[int, int] = {}
    for device in devices:
        for step, seconds in device.step_seconds.items():
            longest[step] = max(longest.get(step, 0), _nanoseconds(seconds))
    steps = sorted(longest)
    ends = itertools.accumulate((longest[step] for step in steps), initial=0)
    return dict(zip(steps, ends, strict=False))


def _rows(device: TracedDevice) -> Iterator[tuple[str, list[Span]]]:
    """(name, spans) of each row of one process, the step first. Events of one thread must not
    overlap, so messages that are under way together get several rows: `a sends`, `a sends 2`."""
    steps = [Span(k, STEP, f"step {k}", 0.0, s, {}) for k, s in device.step_seconds.items()]
    by_row: dict[str, list[Span]] = {STEP: steps, COMPUTE: []}
    for span in device.spans:
        by_row.setdefault(span.row, []).append(span)
    for row in (STEP, COMPUTE, *sorted(by_row.keys() - {STEP, COMPUTE})):
        for number, lane in enumerate(_lanes(by_row[row]), start=1):
            yield (row if number == 1 else f"{row} {number}"), lane


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    lanes: list[list[Span]] = [[]]
    for span in sorted(spans, key=lambda s: (s.step, s.start_seconds, s.finish_seconds)):
        for lane in lanes:
            if not lane or _ends_before(lane[-1], span):
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _ends_before(earlier: Span, later: Span) -> bool:
    """Whether it does by the rounded times of the file."""
    ended = _nanoseconds(earlier.finish_seconds) <= _nanoseconds(later.start_seconds)
    return earlier.step != later.step or ended


def _process(rank: int, source: Source) -> int:
    """The number of a device's process: its measured rows follow its predicted ones."""
    return 1 + 2 * rank + (source == "measured")


def _name(pid: int, tid: int, what: str, name: str, position: int) -> list[dict[str, Any]]:
    place = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**place, "name": f"{what}_name", "args": {"name": name}},
        {**place, "name": f"{what}_sort_index", "args": {"sort_index": position}},
    ]


def _event(pid: int, tid: int, span: Span, begins: Mapping[int, int]) -> dict[str, Any]:
    start = _nanoseconds(span.start_seconds)
    took = _nanoseconds(span.finish_seconds) - start
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": span.name, "cat": span.row,
        "ts": (begins[span.step] + start) / 1000, "dur": took / 1000,
        "args": {"step": span.step, **span.details},
    }  # fmt: skip


def _nanoseconds(seconds: float) -> int:
    """The file's unit: with whole numbers a span never overlaps one that begins where it ends."""
    return round(seconds * 1e9)


def _span(event: SpanEvent, begins: Mapping[int, float]) -> Span:
    details = dict(event.args)
    step = int(details.pop("step"))
    start = event.ts - begins[step]
    finish = start + event.dur
    return Span(step, event.cat, event.name, start / 1e6, finish / 1e6, details)


def _device(entry: DeviceEntry, spans: Sequence[tuple[int, Span]]) -> TracedDevice:
    pid = _process(entry.rank, entry.source)
    own = [span for process, span in spans if process == pid]
    return TracedDevice(
        rank=entry.rank,
        device=entry.device,
        source=entry.source,
        step_seconds={s.step: s.finish_seconds for s in own if s.row == STEP},
        spans=tuple(span for span in own if span.row != STEP),
    )
