"""Multiplies the times of a profile by a constant, as a stand-in for hardware that is missing.

A CPU profile scaled to a GPU's step time is, in relation to a link, about as fast as the GPU. Real
accelerators do not scale all operators alike, so such a graph shows how a network decides a
placement, but predicts no accelerator.
"""

from __future__ import annotations

from placewire.optimizer.graph.operator_graph import OperatorGraph


def with_scaled_seconds(
    graph: OperatorGraph, factor: float, device_type: str | None = None
) -> OperatorGraph:
    """Returns the graph with all seconds multiplied by factor; sizes and structure are the same.

    device_type: the new name of a graph's only type; if None the types keep their names. Raises
    ValueError for a factor that is not positive, or a name for several types.
    """
    if not factor > 0:
        raise ValueError(f"the factor is {factor}; it must be positive")
    names = graph.device_types
    if device_type is not None:
        if len(names) != 1:
            raise ValueError(
                f"the graph has {len(names)} device types; {device_type!r} can stand for one only"
            )
        names = (device_type,)
    return graph.with_seconds({name: graph.seconds[:, k] * factor for k, name in enumerate(names)})


def with_total_seconds(graph: OperatorGraph, seconds: float) -> OperatorGraph:
    """Scales so that a device of the first type takes `seconds` for all operators together."""
    return with_scaled_seconds(graph, seconds / float(graph.seconds[:, 0].sum()))
