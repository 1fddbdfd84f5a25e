"""Makes a profile from the traces of ranks: time and memory of operators where they were placed.

This is the second step of Celeritas' Standard Evaluation (section 4.2.1), with the deviations of
its Table 5: |e - a| / a for each operator, of the estimate e from the later measurement a.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph
from placewire.optimizer.graph.rows import MOST_BYTES
from placewire.optimizer.profile.rough import held_bytes
from placewire.optimizer.trace.document import COMPUTE, WORKSPACE, Span, Trace

# The steps of the wanted batch that Standard Evaluation runs: to warm up, one to measure what
# operators hold, and those that are timed, unless another number is asked for.
WARM_UP_STEPS, TIMED_STEPS = 5, 9
# Operators for values that exist before a step begins: they take no time, though a rank reads them.
_RESIDENT = ("parameter", "buffer", "input")


@dataclass(frozen=True)
class Deviation:
    """Over the operators whose measured value is more than 0. average: of |e - a| / a. operators:
    how many they are. within_30_percent: the fraction of them. whole: (e - a) / a of the sums."""

    average: float
    within_30_percent: float
    operators: int
    whole: float


def with_recorded(graph: OperatorGraph, traces: Sequence[Trace]) -> OperatorGraph:
    """Returns the graph, of one device type, with the median of each operator's recorded times and
    its recorded workspace. traces: of all ranks, with workspace.

    Raises GraphError where a trace is of another graph, times what is no operator of it, states a
    time or workspace that cannot be, or no trace has an operator.
    """
    if len(graph.device_types) != 1:
        raise GraphError(f"the graph has {len(graph.device_types)} device types; it must have one")
    took: dict[str, list[float]] = defaultdict(list)
    workspace = np.zeros(graph.operator_count, dtype=np.int64)
    most_bytes = MOST_BYTES // max(graph.operator_count, 1)
    for trace in traces:
        if trace.structure_hash != graph.structure_hash:
            raise GraphError("a trace is of another graph")
        for device in trace.devices:
            for span in (s for s in device.spans if s.row == COMPUTE):
                where = f"the trace of rank {device.rank} ({device.device})"
                if span.name not in graph.index_of:
                    raise GraphError(f"{where} times {span.name!r}, which is no operator")
                took[span.name].append(_seconds(span, where))
                workspace[graph.index_of[span.name]] = _workspace_bytes(span, where, most_bytes)
    seconds = np.zeros(graph.operator_count)
    for i, identifier in enumerate(graph.ids):
        if graph.types[i] in _RESIDENT:
            workspace[i] = 0
        elif identifier in took:
            seconds[i] = np.median(took[identifier])
        else:
            raise GraphError(f"no trace has operator {identifier!r}: give those of all ranks")
    timed = graph.with_seconds({graph.device_types[0]: seconds})
    notes = {**graph.notes, "samples": max(map(len, took.values()), default=0)}
    return replace(timed, workspace_bytes=workspace, notes=notes)


def _seconds(span: Span, where: str) -> float:
    if span.finish_seconds < span.start_seconds:
        raise GraphError(f"{where} has operator {span.name!r} end before it starts")
    return span.finish_seconds - span.start_seconds


def _workspace_bytes(span: Span, where: str, most: int) -> int:
    found = span.details.get(WORKSPACE, 0)
    if not isinstance(found, int) or not 0 <= found <= most:
        raise GraphError(
            f"{where} gives operator {span.name!r} {WORKSPACE} {found!r}, expected a whole number "
            f"from 0 to {most}"
        )
    return found


def deviation_lines(estimated: OperatorGraph, measured: OperatorGraph) -> list[str]:
    """Describes the deviations of memory and of time."""
    of = {
        "memory": deviation(held_bytes(estimated), held_bytes(measured)),
        "time": deviation(estimated.seconds[:, 0], measured.seconds[:, 0]),
    }
    return [
        f"{what}: the estimate is off by {one.average:.2%} on average over {one.operators} "
        f"operators, within 30 % for {one.within_30_percent:.0%} of them; {one.whole:+.1%} in all"
        for what, one in of.items()
    ]


def deviation(estimated: FloatArray, measured: FloatArray) -> Deviation:
    """Takes float64[n] each; at least one measured value must be more than 0."""
    there = measured > 0
    relative = np.abs(estimated[there] - measured[there]) / measured[there]
    return Deviation(
        average=float(relative.mean()),
        within_30_percent=float((relative <= 0.3).mean()),
        operators=int(there.sum()),
        whole=float(estimated[there].sum() / measured[there].sum() - 1.0),
    )
