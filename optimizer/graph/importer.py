"""Importers read graphs in the formats of other projects; each is registered by its format."""

from __future__ import annotations

from argparse import _ArgumentGroup
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph
from placewire.optimizer.registry import Registry

_ENDINGS = (".gz", ".json", ".onnx", ".et")


@dataclass(frozen=True)
class Imported:
    """cluster: None where the format describes no cluster."""

    graph: OperatorGraph
    cluster: Cluster | None = None


@dataclass(frozen=True)
class Importer:
    """summary: for people. read: reads a file with the importer's own options by name; raises
    OSError, and GraphError naming the place. options: each adds arguments to `optimizer import`."""

    summary: str
    read: Callable[[Path, Mapping[str, Any]], Imported]
    options: tuple[Callable[[_ArgumentGroup], None], ...] = ()


IMPORTERS = Registry("placewire.importers", "format", Importer)


def import_file(path: Path, form: str, options: Mapping[str, Any] | None = None) -> Imported:
    """Raises OSError, UnknownMethodError, and GraphError naming file and place."""
    importer = IMPORTERS.load(form)
    try:
        return importer.read(path, options or {})
    except GraphError as error:
        message = str(error).removeprefix(f"{path}: ")
        raise GraphError(f"{path}: {message}") from error


def of_json(read: Callable[[Any, str], Imported]) -> Callable[[Path, Mapping[str, Any]], Imported]:
    """The `read` of an importer whose format is one JSON document; read takes (document, name)."""

    def read_file(path: Path, options: Mapping[str, Any]) -> Imported:
        return read(read_json(path), graph_name(path))

    return read_file


def graph_name(path: Path) -> str:
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name
