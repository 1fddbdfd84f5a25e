"""Measures the workspace of each operator: the memory that it holds only while it runs.

On a CPU torch's profiler notes every allocation and release of torch's CPU allocator, including
oneDNN's scratch memory. What MKL keeps for itself from its first call on is not noted, and counts
as memory of the program. On CUDA the allocator counts its own peak.
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
from torch import fx
from torch.profiler import ProfilerActivity, profile

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.capture.captured_step import CapturedStep

_MARK = "operator:"


@dataclass(frozen=True)
class Span:
    """When an operator ran, on the clock by which allocations are timed."""

    operator: str
    start: float
    end: float


def weigh(
    module: fx.GraphModule, ends: Mapping[str, str | None], inputs: Sequence[Any], device_type: str
) -> tuple[Any, dict[str, int]]:
    """Runs one step. Returns its result, and by operator the most that the operator had allocated
    at any time since it began. An earlier step must have run, which makes optimizer state and what
    libraries keep.

    ends: by node name the operator that the node ends, None where it ends something else; nodes
    without an entry belong to the next entry. device_type: cpu or cuda.
    """
    weighing = _Weighing(module, ends, device_type)
    with torch.no_grad():
        if device_type == "cuda":
            return weighing.run(*inputs), weighing.peaks
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            with _without_kineto_lines():
                with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                    result = weighing.run(*inputs)
                profiler.export_chrome_trace(str(file))
            events = json.loads(file.read_bytes())["traceEvents"]
    # The profiler leaves cycles, which end the process where they are collected after gloo's
    # connections were closed (seen with torch 2.13).
    del profiler
    gc.collect()
    return result, peaks_inside(*read_trace(events))


class _Weighing(fx.Interpreter):
    """Marks each operator for torch's profiler, or notes its peak where the device is CUDA's."""

    def __init__(
        self, module: fx.GraphModule, ends: Mapping[str, str | None], device_type: str
    ) -> None:
        super().__init__(module)
        self._on_cuda = device_type == "cuda"
        self._before: dict[str, int] = {}
        self.peaks: dict[str, int] = {}
        self._operators: dict[fx.Node, str | None] = {}
        operator = None
        for node in reversed(module.graph.nodes):
            self._operators[node] = operator = ends.get(node.name, operator)

    def run_node(self, n: fx.Node) -> Any:
        operator = self._operators[n]
        if operator is None:
            return super().run_node(n)
        if not self._on_cuda:
            with torch.profiler.record_function(_MARK + operator):
                return super().run_node(n)
        # The allocator counts when it is called, not when kernels run: nothing is waited for.
        torch.cuda.reset_peak_memory_stats()
        before = self._before.setdefault(operator, torch.cuda.memory_allocated())
        value = super().run_node(n)
        peak = torch.cuda.max_memory_allocated() - before
        self.peaks[operator] = max(self.peaks.get(operator, 0), peak)
        return value


def workspace_bytes(captured: CapturedStep, peaks: Mapping[str, int]) -> IntArray:
    """Returns int64[n]: the most that each operator allocated beyond what it leaves according to
    the graph; 0 for an operator without a peak."""
    graph = captured.operators
    # Operators that compute hold nothing during the whole step but the outputs of a forward pass
    # alone.
    leaves = graph.activation_bytes + graph.weight_bytes
    found = np.zeros(graph.operator_count, dtype=np.int64)
    for identifier, peak in peaks.items():
        i = graph.index_of[identifier]
        left = int(leaves[i])
        if identifier not in captured.layouts:  # a tuple, whose items count their own
            users = captured.nodes[identifier].users
            left = sum(int(leaves[graph.index_of[user.name]]) for user in users)
        found[i] = max(0, peak - left)
    return found


def peaks_inside(spans: Sequence[Span], changes: Sequence[tuple[float, int]]) -> dict[str, int]:
    """Returns by operator the highest sum of its changes up to any moment, at least 0. All changes
    from the begin of an operator's first span to the end of its last belong to it.

    changes: (time, bytes), in any order; released bytes are negative.
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
    """Reads operators and allocations from a Chrome trace as torch's profiler writes it."""
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
    """Silences standard error, to which Kineto writes at start and stop whatever its log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
