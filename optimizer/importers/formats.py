"""The published formats by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from optimizer.graph import GraphError, read_json
from optimizer.importers.imported import Imported
from optimizer.importers.moirai import read_moirai
from optimizer.importers.msr import Devices, read_msr
from optimizer.importers.node_link import read_node_link
from optimizer.importers.thesis import read_thesis
from optimizer.names import GraphFormat

_READERS: dict[GraphFormat, Callable[[Any, str], Imported]] = {
    "thesis": read_thesis,
    "msr": read_msr,
    "moirai": read_moirai,
    "node-link": read_node_link,
}


def import_file(path: Path, form: GraphFormat, devices: Devices = "all") -> Imported:
    """The graph is named after the file. Raises OSError, and GraphError naming file and place."""
    document = read_json(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    try:
        if devices == "all":
            return _READERS[form](document, name)
        if form != "msr":
            raise GraphError(f"format {form} has no device {devices!r} to choose")
        return read_msr(document, name, devices)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
