"""A profile times a constant.

A stand-in for hardware that is not there: a CPU profile scaled to a GPU's step time is, in relation
to a link, about as fast as a GPU. Real accelerators do not scale all operators alike, so such a
graph shows how a network decides a placement, and predicts no accelerator.
"""

from __future__ import annotations

from placewire.optimizer.graph.operator_graph import OperatorGraph


def with_scaled_seconds(
    graph: OperatorGraph, factor: float, device_type: str | None = None
) -> OperatorGraph:
    """Every operator's seconds times factor; sizes and structure are the same.

    device_type: the name of the scaled type, where the graph has one type; if None the types keep
    their names. Raises ValueError for a factor that is not positive, or for a name that would
    have to stand for several types.
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
    """Scaled so that a device of the first type takes that long for all operators together."""
    return with_scaled_seconds(graph, seconds / float(graph.seconds[:, 0].sum()))
