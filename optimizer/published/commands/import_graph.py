"""`optimizer import --format FORMAT IN --out OUT`: a published graph format -> our own files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.optimizer.commands.outcome import DONE, InputError, ended
from placewire.optimizer.names import GraphFormat


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog, description="A published graph format -> a graph file.", epilog=EXIT_CODES
    )
    made.add_argument("file", type=Path, help="gzip or not")
    made.add_argument(
        "--format",
        choices=get_args(GraphFormat),
        required=True,
        help="thesis: node-link with comp_cost; msr: accelerators and CPUs of one machine; "
        "moirai: four unlike devices; node-link: networkx's, with our attributes; onnx: a model's "
        "operators, without times; chakra: an execution trace of one process, as PyTorch writes it",
    )
    made.add_argument("--out", type=Path, required=True, help="graph file; gzip if it ends in .gz")
    made.add_argument(
        "--cluster-out", type=Path, help="write the cluster that the format describes (msr, moirai)"
    )
    made.add_argument(
        "--devices",
        choices=("all", "accelerator"),
        default="all",
        help="accelerator: of msr only the accelerators' times, to place it on other clusters",
    )
    made.add_argument(
        "--dimension",
        type=_dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the size of a dimension that an onnx file only names, like batch=32; repeatable",
    )
    return made


def main(arguments: list[str], prog: str) -> int:
    return ended(_import, parser(prog).parse_args(arguments))


def _dimension(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not (name and equals and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=SIZE, like batch=32")
    return name, int(size)


def _import(options: argparse.Namespace) -> int:
    from placewire.optimizer.explain.summary import graph_lines
    from placewire.optimizer.graph.graph_file import save_graph
    from placewire.optimizer.graph.json_file import write_json
    from placewire.optimizer.published.importers.formats import import_file

    imported = import_file(options.file, options.format, options.devices, dict(options.dimension))
    if options.cluster_out is not None and imported.cluster is None:
        raise InputError(f"--cluster-out: format {options.format} describes no cluster")
    save_graph(imported.graph, options.out)
    if options.cluster_out is not None and imported.cluster is not None:
        write_json(options.cluster_out, imported.cluster.model_dump(mode="json"))
    print("\n".join(graph_lines(imported.graph)), file=sys.stderr)
    return DONE
