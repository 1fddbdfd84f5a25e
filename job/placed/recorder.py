"""What this rank did in its job's last steps: when each operator ran, and each message.

Nothing is kept, and no clock read, in steps that are not recorded.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage
from placewire.job.transport.transport import Transport, Watcher
from placewire.optimizer.graph.json_file import write_json
from placewire.optimizer.placement import Placement
from placewire.optimizer.trace.document import (
    COMPUTE,
    WORKSPACE,
    Detail,
    Span,
    Trace,
    TracedDevice,
    rail_row,
    trace_to_json,
)


class Recorder:
    """`on` within the steps that the job asks for, else off; while it is off nothing is kept.
    `weighing` in the step before these, where the job asks what operators hold while they run;
    workspace_bytes, by operator, is to be set then.

    Times are those of time.perf_counter. Any thread may tell what left.
    """

    def __init__(self, spec: RankSpec, placement: Placement) -> None:
        """Raises JobError or OSError where the trace could not be written after the job."""
        self.on = self.weighing = False
        self.workspace_bytes: Mapping[str, int] = {}
        self._spec, self._placement = spec, placement
        self._step, self._barrier = 0, 0.0
        self._barriers: dict[int, float] = {}
        self._step_seconds: dict[int, float] = {}
        self._operators: list[tuple[int, str, float, float]] = []
        self._queued: list[tuple[int, RankMessage, float]] = []
        self._left: list[tuple[int, int, str, float, float]] = []
        self._received: list[tuple[int, RankMessage, float, float]] = []
        if spec.trace is not None:
            folder = Path(spec.trace.folder)
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise JobError(
                    f"the trace's folder {folder} cannot be written",
                    "give a folder that the user of the ranks may write to, in job.trace.folder",
                )
            if spec.trace.workspace and spec.steps < spec.trace.steps + 2:
                raise JobError(
                    f"{spec.steps} steps are too few for workspace and {spec.trace.steps} recorded "
                    "ones after the first"
                )

    def around(self, transport: Transport) -> Transport:
        """The transport for the rank's program: itself where nothing will be recorded."""
        if self._spec.trace is None:
            return transport
        transport.report_to(self)
        return _WatchedTransport(transport, self)

    def begin(self, step: int) -> None:
        """Right after the step's barrier."""
        trace = self._spec.trace
        recorded = self._spec.steps if trace is None else self._spec.steps - trace.steps
        self.on = step >= recorded
        self.weighing = trace is not None and trace.workspace and step == recorded - 1
        self._step, self._barriers[step] = step, time.perf_counter()

    def end(self) -> None:
        """When all of the step's messages are complete."""
        if self.on:
            took = time.perf_counter() - self._barriers[self._step]
            self._step_seconds[self._step] = took
        self.on = self.weighing = False

    def operator(self, identifier: str, started: float, finished: float) -> None:
        if self.on:
            self._operators.append((self._step, identifier, started, finished))

    def in_turn(self, operators: Iterable[tuple[str, float]], started: float) -> None:
        """Operators (id, seconds) that take their time one after the other."""
        for identifier, seconds in operators:
            self.operator(identifier, started, started + seconds)
            started += seconds

    def queued(self, message: RankMessage, at: float) -> None:
        if self.on:
            self._queued.append((self._step, message, at))

    def left(self, message: RankMessage, rail: str, started: float, finished: float) -> None:
        """See Watcher."""
        if self.on:
            self._left.append((self._step, message.index, rail, started, finished))

    def received(self, message: RankMessage, waited_from: float, there: float) -> None:
        if self.on:
            self._received.append((self._step, message, waited_from, there))

    def write(self, structure_hash: str) -> None:
        """After the last step. Raises OSError."""
        if self._spec.trace is None:
            return
        spans = [*self._computed(), *self._sent(), *self._arrived()]
        device = TracedDevice(
            self._spec.rank, self._spec.device, "measured", self._step_seconds, tuple(spans)
        )
        document = trace_to_json(Trace(structure_hash, (device,)))
        write_json(self._spec.trace.file_of(self._spec.rank), document)

    def _computed(self) -> Iterator[Span]:
        for step, identifier, started, finished in self._operators:
            held = self.workspace_bytes.get(identifier)
            details = {} if held is None else {WORKSPACE: held}
            yield self._span(step, COMPUTE, identifier, started, finished, details)

    def _sent(self) -> Iterator[Span]:
        """From when the transport took up its first part to when its last part was out of hand."""
        first: dict[tuple[int, int, str], float] = {}
        last: dict[tuple[int, int, str], float] = {}
        for step, index, rail, started, finished in self._left:
            part = step, index, rail
            first[part] = min(first.get(part, started), started)
            last[part] = max(last.get(part, finished), finished)
        for step, message, queued in self._queued:
            for rail, count in _bytes_by_rail(message).items():
                part = step, message.index, rail
                started = first.get(part, queued)
                told = {"queued_microseconds": round((started - queued) * 1e6, 3)}
                details = self._details(message, count) | told
                row = rail_row(rail, "sends")
                name, finished = message.producer, last.get(part, queued)
                yield self._span(step, row, name, started, finished, details)

    def _arrived(self) -> Iterator[Span]:
        """While the program waited for it; merging knows when it was sent."""
        for step, message, waited_from, there in self._received:
            for rail, count in _bytes_by_rail(message).items():
                told = {"waited_microseconds": round((there - waited_from) * 1e6, 3)}
                details = self._details(message, count) | told
                row = rail_row(rail, "receives")
                yield self._span(step, row, message.producer, waited_from, there, details)

    def _details(self, message: RankMessage, count: int) -> dict[str, Detail]:
        send_order = self._placement.messages[message.index].send_order
        return {
            "peer": message.peer_device, "bytes": count, "send_order": send_order,
            "output": message.output,
        }  # fmt: skip

    def _span(
        self,
        step: int,
        row: str,
        name: str,
        started: float,
        finished: float,
        details: Mapping[str, Detail],
    ) -> Span:
        barrier = self._barriers[step]
        return Span(step, row, name, started - barrier, finished - barrier, details)


def _bytes_by_rail(message: RankMessage) -> Counter[str]:
    count: Counter[str] = Counter()
    for part, rail in zip(message.parts, message.rail_names, strict=True):
        count[rail] += part.stop - part.start
    return count


class _WatchedTransport:
    """What a program sends and receives, told to the recorder."""

    def __init__(self, inner: Transport, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder
        self.sent_bytes = inner.sent_bytes

    def report_to(self, watcher: Watcher) -> None:
        self._inner.report_to(watcher)

    def begin_step(self) -> None:
        self._inner.begin_step()

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        self._recorder.queued(message, time.perf_counter())
        if self._recorder.weighing and wire.device.type == "cpu":
            # torch's profiler goes with the thread that hands something to gloo into gloo's own,
            # which may still tell it of memory when it is gone (seen with torch 2.13: a crash in
            # one of ten runs). A thread of its own takes nothing along.
            with ThreadPoolExecutor(max_workers=1) as apart:
                apart.submit(self._inner.send, message, wire).result()
        else:
            self._inner.send(message, wire)

    def receive(self, message: RankMessage) -> torch.Tensor:
        waited_from = time.perf_counter()
        wire = self._inner.receive(message)
        self._recorder.received(message, waited_from, time.perf_counter())
        return wire

    def complete(self, message: RankMessage) -> None:
        self._inner.complete(message)

    def end_step(self) -> None:
        self._inner.end_step()

    def close(self) -> None:
        self._inner.close()
