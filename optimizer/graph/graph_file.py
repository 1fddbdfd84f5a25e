"""The file of an operator graph: one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import COUNTS, OperatorGraph, build_graph, tensor_rows
from placewire.optimizer.graph.rows import (
    MOST_BYTES,
    GraphError,
    checked_header,
    each,
    operator_row,
    tensor_row,
)

GRAPH_VERSION = 1


def load_graph(path: Path) -> OperatorGraph:
    return graph_from_json(read_json(path), where=str(path))


def save_graph(graph: OperatorGraph, path: Path) -> None:
    write_json(path, graph_to_json(graph))


def graph_to_json(graph: OperatorGraph) -> dict[str, Any]:
    operators = []
    for i, identifier in enumerate(graph.ids):
        row: dict[str, Any] = {
            "id": identifier,
            "type": graph.types[i],
            "seconds": {
                t: float(graph.seconds[i, k])
                for k, t in enumerate(graph.device_types)
                if np.isfinite(graph.seconds[i, k])
            },
        }
        if graph.signatures[i]:
            row["signature"] = graph.signatures[i]
        if graph.modules[i]:
            row["module"] = graph.modules[i]
        for key in COUNTS:
            if value := int(getattr(graph, key)[i]):
                row[key] = value
        if graph.colocation[i] >= 0:
            row["colocation"] = str(int(graph.colocation[i]))
        operators.append(row)
    tensors = [
        {"producer": t.producer, "consumers": list(t.consumers), "bytes": t.bytes}
        for t in tensor_rows(graph)
    ]
    return {
        "version": GRAPH_VERSION,
        "name": graph.name,
        "structure_hash": graph.structure_hash,
        "device_types": list(graph.device_types),
        "notes": dict(graph.notes),
        "operators": operators,
        "tensors": tensors,
    }


def graph_from_json(document: Any, where: str = "graph") -> OperatorGraph:
    """Raises GraphError naming the offending place."""
    try:
        graph = _read_graph(document)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from error
    stated = document.get("structure_hash")
    if stated is not None and stated != graph.structure_hash:
        raise GraphError(
            f"{where}: structure_hash is {stated[:12]}…, but the operators and tensors in the file "
            f"hash to {graph.structure_hash[:12]}…: the file was changed by hand; drop the key if "
            "that was intended"
        )
    return graph


def _read_graph(document: Any) -> OperatorGraph:
    header = checked_header(document, GRAPH_VERSION)
    operators = each(header["operators"], operator_row, "operators")
    tensors = each(header["tensors"], tensor_row, "tensors")
    total = sum(row.all_bytes for row in operators) + sum(row.bytes for row in tensors)
    if total > MOST_BYTES:
        raise GraphError(f"operators and tensors have {total} bytes, at most {MOST_BYTES} fit")
    types = header.get("device_types")
    timed = dict.fromkeys(t for row in operators for t in row.seconds)
    if types is not None and (unnamed := [t for t in timed if t not in types]):
        raise GraphError(f"operators have times for {unnamed[0]!r}, which device_types lacks")
    return build_graph(
        operators,
        tensors,
        name=header.get("name") or "graph",
        device_types=types,
        notes=header.get("notes"),
    )
