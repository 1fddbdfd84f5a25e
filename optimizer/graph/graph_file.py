"""Reads and writes the file of an operator graph, one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from placewire.optimizer.collector import collector_paused
from placewire.optimizer.graph import rows
from placewire.optimizer.graph.checked_notes import require_notes
from placewire.optimizer.graph.document_kind import GRAPH, other_kind
from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    build_graph,
    tensor_rows,
)

GRAPH_VERSION = 1


@collector_paused()
def load_graph(path: Path) -> OperatorGraph:
    return graph_from_json(read_json(path), where=str(path))


def save_graph(graph: OperatorGraph, path: Path) -> None:
    write_json(path, graph_to_json(graph))


def graph_to_json(graph: OperatorGraph) -> dict[str, Any]:
    operators = []
    for i, identifier in enumerate(graph.ids):
        times = zip(graph.device_types, graph.seconds[i].tolist(), strict=True)
        row: dict[str, Any] = {
            "id": identifier,
            "type": graph.types[i],
            "seconds": {t: seconds for t, seconds in times if np.isfinite(seconds)},
        }
        optional = {
            "signature": graph.signatures[i],
            "module": graph.modules[i],
            **{key: int(getattr(graph, key)[i]) for key in rows.COUNTS},
            "colocation": str(graph.colocation[i]) if graph.colocation[i] >= 0 else "",
        }
        row |= {key: value for key, value in optional.items() if value}
        if graph.micro_batch[i] >= 0:
            row["micro_batch"] = int(graph.micro_batch[i])
        operators.append(row)
    return {
        "version": GRAPH_VERSION,
        "name": graph.name,
        "structure_hash": graph.structure_hash,
        "device_types": list(graph.device_types),
        "notes": dict(graph.notes),
        "operators": operators,
        "tensors": [
            {"producer": t.producer, "consumers": list(t.consumers), "bytes": t.bytes}
            for t in tensor_rows(graph)
        ],
    }


def graph_from_json(document: Any, where: str = "graph") -> OperatorGraph:
    """Raises GraphError naming the key that is wrong."""
    if (other := other_kind(document, GRAPH)) is not None:
        raise GraphError(f"{where}: {other}")
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
    header = rows.checked_header(document, GRAPH_VERSION)
    operators = rows.each(header["operators"], rows.operator_row, "operators")
    tensors = rows.each(header["tensors"], rows.tensor_row, "tensors")
    total = sum(row.all_bytes for row in operators) + sum(row.bytes for row in tensors)
    if total > rows.MOST_BYTES:
        raise GraphError(f"operators and tensors have {total} bytes, at most {rows.MOST_BYTES} fit")
    require_notes(header.get("notes") or {}, {row.id for row in operators})
    types = header.get("device_types")
    timed = dict.fromkeys(t for row in operators for t in row.seconds)
    if types is not None and (unnamed := [t for t in timed if t not in types]):
        raise GraphError(f"operators have times for {unnamed[0]!r}, which device_types lacks")
    if (times := len(operators) * len(timed if types is None else types)) > rows.MOST_TIMES:
        raise GraphError(
            f"{len(operators)} operators have {times} times, one for each device type; at most "
            f"{rows.MOST_TIMES} fit"
        )
    return build_graph(
        operators,
        tensors,
        name=header.get("name") or "graph",
        device_types=types,
        notes=header.get("notes"),
    )
