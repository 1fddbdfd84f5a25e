"""Records when each operator and message of a rank ran in the last steps of its job.

In other steps nothing is kept and no clock is read.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.transport.transport import Transport, Watcher
from placewire.optimizer.graph.json_file import packed_json, replace_file
from placewire.optimizer.placement import Placement
from placewire.optimizer.trace.document import (
    COMPUTE,
    WORKSPACE,
    Span,
    Trace,
    TracedDevice,
    rail_row,
    trace_to_json,
)
from placewire.optimizer.trace.trace_file import Detail


class Recorder:
    """`on` during the steps that the job asks for; only then is anything kept. `weighing` during
    the step before these, where the job asks for workspace: workspace_bytes, by operator, is to be
    set in that step.

    Times are of time.perf_counter. left() may be called from any thread.
    """

    def __init__(self, spec: RankSpec, placement: Placement) -> None:
        """Raises JobError or OSError where the trace cannot be recorded or written."""
        self.on = self.weighing = False
        self.workspace_bytes: Mapping[str, int] = {}
        self._spec, self._placement = spec, placement
        self._step = 0
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
                    f"the trace's folder {folder} cannot be written to",
                    "give a job.trace.folder that the ranks' user may write to",
                )
            if spec.trace.workspace and spec.steps < spec.trace.steps + 2:
                raise JobError(
                    f"{spec.steps} steps are too few: the workspace step and {spec.trace.steps} "
                    "recorded steps must come after the first step"
                )

    def around(self, transport: Transport) -> Transport:
        """Returns the transport, wrapped so that it tells this recorder where a trace is asked."""
        if self._spec.trace is None:
            return transport
        transport.report_to(self)
        return _WatchedTransport(transport, self)

    def begin(self, step: int, at: float) -> None:
        """at: when the step's barrier opened."""
        trace = self._spec.trace
        recorded = self._spec.steps if trace is None else self._spec.steps - trace.steps
        self.on = step >= recorded
        self.weighing = trace is not None and trace.workspace and step == recorded - 1
        self._step = step
        if self.on:
            self._barriers[step] = at

    def end(self, at: float) -> None:
        """at: when all of the step's messages were complete."""
        if self.on:
            self._step_seconds[self._step] = at - self._barriers[self._step]
        self.on = self.weighing = False

    @property
    def is_needed(self) -> bool:
        """Whether this step is recorded or weighed."""
        return self.on or self.weighing

    def operator(self, identifier: str, started: float, finished: float) -> None:
        if self.on:
            self._operators.append((self._step, identifier, started, finished))

    def in_turn(self, operators: Iterable[tuple[str, float]], started: float) -> None:
        """Records operators (id, seconds) that run one after the other from `started`."""
        for identifier, seconds in operators:
            self.operator(identifier, started, started + seconds)
            started += seconds

    def queued(self, message: RankMessage, at: float) -> None:
        if self.on:
            self._queued.append((self._step, message, at))

    def left(self, message: RankMessage, rail: str, started: float, finished: float) -> None:
        """Implements Watcher."""
        if self.on:
            self._left.append((self._step, message.index, rail, started, finished))

    def received(self, message: RankMessage, waited_from: float, there: float) -> None:
        if self.on:
            self._received.append((self._step, message, waited_from, there))

    def write(self, structure_hash: str) -> None:
        """To be called after the last step. Raises OSError."""
        if self._spec.trace is None:
            return
        spans = [*self._computed(), *self._sent(), *self._arrived()]
        device = TracedDevice(
            self._spec.rank, self._spec.device, "measured", self._step_seconds, tuple(spans)
        )
        document = trace_to_json(Trace(structure_hash, (device,)))
        file = self._spec.trace.file_of(self._spec.rank)
        replace_file(file, packed_json(file, document))

    def _computed(self) -> Iterator[Span]:
        for step, identifier, started, finished in self._operators:
            held = self.workspace_bytes.get(identifier)
            details = {} if held is None else {WORKSPACE: held}
            yield self._span(step, COMPUTE, identifier, started, finished, details)

    def _sent(self) -> Iterator[Span]:
        """Spans from when a message's first part was handed over to when its last part had left."""
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
        """Spans of the program's wait for a message; merging adds when the message was sent."""
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
        count[rail] += part.bytes
    return count


class _WatchedTransport:
    """Tells the recorder what a program sends and receives."""

    def __init__(self, inner: Transport, recorder: Recorder) -> None:
        self._inner, self._recorder = inner, recorder
        self.sent_bytes = inner.sent_bytes

    def report_to(self, watcher: Watcher) -> None:
        self._inner.report_to(watcher)

    def expect(self, messages: RankMessages) -> None:
        self._inner.expect(messages)

    def begin_step(self, told: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
        return self._inner.begin_step(told)

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        self._recorder.queued(message, time.perf_counter())
        if self._recorder.weighing and wire.device.type == "cpu":
            # torch's profiler follows a thread that hands something to gloo into gloo's threads,
            # which may report memory to it after it has ended (seen with torch 2.13: a crash in one
            # of ten runs). It does not follow a thread that was started for the sending.
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
