"""Names the graphs of one step that is cut into several numbers of micro-batches and shards, or
whose layers are computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph

# These notes of a capture must not differ between the variants of a step.
_SAME = ("model", "batch", "autocast", "optimizer", "decompose", "inference", "half")


def variant_names(graphs: Mapping[str, OperatorGraph]) -> list[str]:
    """A name for each graph, by what its capture noted, or else where it came from. graphs: by
    where each came from, such as a file. Raises GraphError where they are of different steps."""
    (where, first), *others = graphs.items()
    for other, graph in others:
        for what in _SAME:
            a, b = first.notes.get(what), graph.notes.get(what)
            if a != b:
                raise GraphError(
                    f"{where} and {other} are no variants of one step: {what} is {a!r} and {b!r}"
                )
        if missing := set(first.device_types) ^ set(graph.device_types):
            raise GraphError(
                f"{where} and {other}: only one of them has times for device type {min(missing)!r}"
            )
    names = [_name(where, graph) for where, graph in graphs.items()]
    return names if len(set(names)) == len(names) else list(graphs)


def cut_name(micro_batches: int, shards: int, recompute: str = "none") -> str:
    """recompute: which layers are computed again: none, every second one (half), or all."""
    name = f"{micro_batches} micro-batch{'es' if micro_batches > 1 else ''}"
    if shards != 1:
        name += f", {shards} shards"
    part = {"half": "half of the layers", "all": "all layers"}.get(recompute)
    return name if part is None else f"{name}, {part} recomputed"


def distinct(
    graphs: Mapping[str, OperatorGraph], tell: Callable[[str], None]
) -> dict[str, OperatorGraph]:
    """Without those that are the same as one before, of which `tell` gets a line: weights may be
    too small to be cut into shards."""
    found: dict[str, tuple[str, OperatorGraph]] = {}
    for where, graph in graphs.items():
        first, _ = found.setdefault(graph.structure_hash, (where, graph))
        if first != where:
            tell(f"{where}: left out, because it is the same step as {first}")
    return dict(found.values())


def _name(where: str, graph: OperatorGraph) -> str:
    count, shards = graph.notes.get("accumulate"), graph.notes.get("shards")
    if not isinstance(count, int) or not isinstance(shards, int):
        return where
    return cut_name(count, shards, str(graph.notes.get("recompute", "none")))
