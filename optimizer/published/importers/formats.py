"""The published formats by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.json_file import read_json, read_plain
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.names import GraphFormat
from placewire.optimizer.published.importers.chakra import read_chakra
from placewire.optimizer.published.importers.imported import Imported
from placewire.optimizer.published.importers.moirai import read_moirai
from placewire.optimizer.published.importers.msr import Devices, read_msr
from placewire.optimizer.published.importers.node_link import read_node_link
from placewire.optimizer.published.importers.onnx import read_onnx
from placewire.optimizer.published.importers.thesis import read_thesis

# What is one JSON document.
_READERS: Mapping[GraphFormat, Callable[[Any, str], Imported]] = {
    "thesis": read_thesis,
    "msr": read_msr,
    "moirai": read_moirai,
    "node-link": read_node_link,
}


def import_file(
    path: Path,
    form: GraphFormat,
    devices: Devices = "all",
    dimensions: Mapping[str, int] | None = None,
) -> Imported:
    """dimensions: of onnx, sizes by name. The graph is named after the file. Raises OSError, and
    GraphError naming file and place."""
    try:
        if devices != "all" and form != "msr":
            raise GraphError(f"format {form} has no device {devices!r} to choose")
        if dimensions and form != "onnx":
            raise GraphError(f"format {form} has no dimensions to give sizes for")
        return _read(path, form, devices, dimensions or {})
    except GraphError as error:
        message = str(error)
        named = message.startswith(f"{path}: ")
        raise GraphError(message if named else f"{path}: {message}") from error


def _read(path: Path, form: GraphFormat, devices: Devices, sizes: Mapping[str, int]) -> Imported:
    name = path.name.removesuffix(".gz")
    for ending in (".json", ".onnx", ".et"):
        name = name.removesuffix(ending)
    if form == "chakra":
        return read_chakra(read_plain(path), name)
    if form == "onnx":
        return read_onnx(read_plain(path), name, path.parent, sizes)
    document = read_json(path)
    return read_msr(document, name, devices) if form == "msr" else _READERS[form](document, name)
