"""What each operator allocates while it runs, and what of that it holds only then: its workspace.

On a CPU torch's profiler notes every allocation and release of torch's CPU allocator, oneDNN's
scratch memory among them; what MKL keeps for itself from its first call on is not, and belongs to
the program's own memory. On CUDA the allocator counts its own peak.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.capture.step import CapturedStep

_MARK = "operator:"


@dataclass(frozen=True)
class Span:
    """When an operator ran, on the clock of the allocations."""

    operator: str
    start: float
    end: float


class Allocations:
    """Of one step: `with watched():` around it, `with of(id):` around each operator in it, or
    around each part of one, as long as no other comes between. To be used after a step has run:
    optimizer state and what libraries keep is there then.

    peaks: by operator, once the step is over, the most that it had allocated at any time since it
    began. device_type: cpu or cuda.
    """

    def __init__(self, device_type: str) -> None:
        self._on_cuda = device_type == "cuda"
        self._before: dict[str, int] = {}
        self.peaks: dict[str, int] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        if self._on_cuda:
            yield
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            with _without_kineto_lines():
                with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                    yield
                profiler.export_chrome_trace(str(file))
            events = json.loads(file.read_bytes())["traceEvents"]
        self.peaks = peaks_inside(*read_trace(events))
        # What the profiler leaves are cycles; collected after gloo's connections were closed they
        # end the process (seen with torch 2.13).
        del profiler
        gc.collect()

    @contextlib.contextmanager
    def of(self, operator: str) -> Iterator[None]:
        if not self._on_cuda:
            with torch.profiler.record_function(_MARK + operator):
                yield
            return
        # The allocator counts when it is called, not when kernels run: nothing is waited for.
        torch.cuda.reset_peak_memory_stats()
        before = self._before.setdefault(operator, torch.cuda.memory_allocated())
        yield
        peak = torch.cuda.max_memory_allocated() - before
        self.peaks[operator] = max(self.peaks.get(operator, 0), peak)


def workspace_bytes(captured: CapturedStep, peaks: Mapping[str, int]) -> IntArray:
    """int64[n]: what an operator allocated at most beyond what the graph says that it leaves; 0
    for those that are not among the peaks."""
    graph = captured.operators
    found = np.zeros(graph.operator_count, dtype=np.int64)
    for identifier, peak in peaks.items():
        i = graph.index_of[identifier]
        left = int(graph.activation_bytes[i])
        if identifier not in captured.layouts:  # of a tuple each item says its own
            users = captured.nodes[identifier].users
            left = sum(int(graph.activation_bytes[graph.index_of[user.name]]) for user in users)
        found[i] = max(0, peak - left)
    return found


def peaks_inside(spans: Sequence[Span], changes: Sequence[tuple[float, int]]) -> dict[str, int]:
    """By operator, the highest sum of its changes up to any moment, at least 0. What two of its
    spans enclose belongs to it.

    changes: (time, bytes allocated, or less than 0 released), in any order.
    """
    ordered = sorted(changes, key=lambda change: change[0])
    times = [time for time, _ in ordered]
    whole: dict[str, Span] = {}
    for span in spans:
        known = whole.get(span.operator, span)
        start, end = min(known.start, span.start), max(known.end, span.end)
        whole[span.operator] = Span(span.operator, start, end)
    peaks = {}
    for span in whole.values():
        first = bisect.bisect_left(times, span.start)
        last = bisect.bisect_right(times, span.end)
        sums = accumulate(size for _, size in ordered[first:last])
        peaks[span.operator] = max(0, *sums, 0)
    return peaks


def read_trace(
    events: Sequence[Mapping[str, Any]],
) -> tuple[list[Span], list[tuple[float, int]]]:
    """The operators and the allocations of a Chrome trace as torch's profiler writes it."""
    spans = [
        Span(event["name"].removeprefix(_MARK), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(_MARK)
    ]
    changes = [
        (event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"
    ]
    return spans, changes


@contextlib.contextmanager
def _without_kineto_lines() -> Iterator[None]:
    """Kineto writes that it starts and stops to standard error, whatever its log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
