"""The published formats as importers, under the names by which pyproject.toml registers them."""

from __future__ import annotations

import argparse
from argparse import _ArgumentGroup
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.importer import Imported, Importer, graph_name, of_json
from placewire.optimizer.graph.json_file import read_json, read_plain
from placewire.optimizer.published.importers.chakra import read_chakra
from placewire.optimizer.published.importers.moirai import read_moirai
from placewire.optimizer.published.importers.msr import read_msr
from placewire.optimizer.published.importers.node_link import read_node_link
from placewire.optimizer.published.importers.onnx import read_onnx
from placewire.optimizer.published.importers.thesis import read_thesis


def _msr(path: Path, options: Mapping[str, Any]) -> Imported:
    return read_msr(read_json(path), graph_name(path), options.get("devices", "all"))


def _onnx(path: Path, options: Mapping[str, Any]) -> Imported:
    sizes = dict(options.get("dimension", ()))
    return read_onnx(read_plain(path), graph_name(path), path.parent, sizes)


def _chakra(path: Path, options: Mapping[str, Any]) -> Imported:
    return read_chakra(read_plain(path), graph_name(path))


def _add_devices(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--devices",
        choices=("all", "accelerator"),
        default="all",
        help="accelerator: only the accelerators and their times, for other clusters",
    )


def _add_dimension(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--dimension",
        type=_dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a dimension that has only a name in the file, like batch=32; repeatable",
    )


def _dimension(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not (name and equals and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=SIZE, like batch=32")
    return name, int(size)


THESIS = Importer("node-link with comp_cost", of_json(read_thesis))
MSR = Importer("accelerators and CPUs of one machine", _msr, (_add_devices,))
MOIRAI = Importer("four unlike devices", of_json(read_moirai))
NODE_LINK = Importer("networkx's, with our attributes", of_json(read_node_link))
ONNX = Importer("a model's operators, without times", _onnx, (_add_dimension,))
CHAKRA = Importer("an execution trace of one process, as PyTorch writes it", _chakra)
