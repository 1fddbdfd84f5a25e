"""Joins profiles of one step from several servers into a graph with times per device type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph

# The largest of any device type counts.
_LARGEST = ("program_bytes", "one_device_bytes")
# Notes about the measurement of one device type; the other notes are about the captured step.
_OF_THE_MEASUREMENT = (
    "server", "processor", "accelerator", "threads", "torch", "warm_up_steps", "samples",
    "sum_of_medians_seconds", "whole_step_seconds", "calibration", *_LARGEST,
)  # fmt: skip


def joined(graphs: Mapping[str, OperatorGraph]) -> OperatorGraph:
    """Returns one graph with the device types in this order; memory of operators, of a rank's
    program and of the step on one device is the largest on any server. graphs: by device type, with
    its times, and `server` in the notes. Raises GraphError, naming both servers, where two captured
    different steps.
    """
    (first_type, first), *others = graphs.items()
    for device_type, graph in others:
        if graph.structure_hash != first.structure_hash:
            raise GraphError(_difference((first_type, first), (device_type, graph)))
    columns = {name: g.seconds[:, g.device_types.index(name)] for name, g in graphs.items()}
    common = {k: v for k, v in first.notes.items() if k not in _OF_THE_MEASUREMENT}
    measurements = {
        name: {k: g.notes[k] for k in _OF_THE_MEASUREMENT if k in g.notes}
        for name, g in graphs.items()
    }
    for key in _LARGEST:
        if known := [m[key] for m in measurements.values() if m.get(key)]:
            common[key] = max(known)
    return replace(
        first.with_seconds(columns),
        activation_bytes=np.max([g.activation_bytes for g in graphs.values()], axis=0),
        workspace_bytes=np.max([g.workspace_bytes for g in graphs.values()], axis=0),
        notes={**common, "profiles": measurements},
    )


def _difference(*ends: tuple[str, OperatorGraph]) -> str:
    words = [
        f"{graph.notes.get('server')} ({device_type}) {graph.structure_hash[:12]} with torch "
        f"{graph.notes.get('torch')}"
        for device_type, graph in ends
    ]
    return (
        f"the servers capture different steps: {', '.join(words)}; "
        f"{_first_unlike(*(graph for _, graph in ends))}. "
        "Give both the same torch and the same sources of the model"
    )


def _first_unlike(one: OperatorGraph, other: OperatorGraph) -> str:
    if one.operator_count != other.operator_count:
        return f"they have {one.operator_count} and {other.operator_count} operators"
    rows = [zip(g.ids, g.types, g.signatures, strict=True) for g in (one, other)]
    for mine, theirs in zip(*rows, strict=True):
        if mine != theirs:
            return f"the first operators that differ are {mine[0]!r} ({mine[1]}) and {theirs[0]!r}"
    return "their operators are the same, but not what these read of each other"
