"""`optimizer export --format node-link GRAPH --out OUT`: writes a graph for analysis elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from placewire.optimizer.commands.arguments import EXIT_CODES, output_file
from placewire.optimizer.commands.outcome import DONE, ended
from placewire.optimizer.commands.outputs import refuse_overwriting


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="Writes a graph file as networkx's node-link JSON.",
        epilog=EXIT_CODES,
    )
    made.add_argument("graph", type=Path, help="graph file")
    made.add_argument(
        "--format", choices=("node-link",), default="node-link", help="default: node-link"
    )
    made.add_argument("--out", type=output_file, required=True, help="file; gzip if it ends in .gz")
    return made


def main(arguments: list[str], prog: str) -> int:
    made = parser(prog)
    options = made.parse_args(arguments)
    refuse_overwriting(made, options, ["out"])
    return ended(_export, options)


def _export(options: argparse.Namespace) -> int:
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.graph.json_file import write_json
    from placewire.optimizer.published.importers.node_link import write_node_link

    write_json(options.out, write_node_link(load_graph(options.graph)))
    return DONE
