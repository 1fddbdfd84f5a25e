"""`optimizer import --format FORMAT IN --out OUT`: converts a published graph to a graph file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from placewire.optimizer.commands.arguments import EXIT_CODES, output_file
from placewire.optimizer.commands.method_options import add_method_options, options_of, parsed
from placewire.optimizer.commands.outcome import DONE, InputError, ended, say
from placewire.optimizer.commands.outputs import refuse_overwriting
from placewire.optimizer.graph.importer import IMPORTERS
from placewire.optimizer.registry import BrokenMethodError


def parser(prog: str, given: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """given: the arguments; the parser has the options of their format. None: of all formats."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="A graph in a published format -> a graph file.",
        epilog=f"{EXIT_CODES}. `--format NAME --help` adds the options of a format",
    )
    made.add_argument("file", type=Path, help="file in that format, with or without gzip")
    made.add_argument(
        "--format",
        choices=IMPORTERS.names,
        required=True,
        help="; ".join(f"{name}: {_summary(name)}" for name in IMPORTERS),
    )
    made.add_argument(
        "--out", type=output_file, required=True, help="graph file; gzip if it ends in .gz"
    )
    made.add_argument(
        "--cluster-out", type=output_file, help="write the cluster that the format describes"
    )
    add_method_options(made, IMPORTERS, "--format", given)
    return made


def main(arguments: list[str], prog: str) -> int:
    def run(given: list[str]) -> int:
        made = parser(prog, given)
        options = parsed(made, IMPORTERS, "--format", given)
        refuse_overwriting(made, options, ["out", "cluster_out"])
        return _import(options)

    return ended(run, arguments)


def _summary(name: str) -> str:
    """For argparse, which takes a percent sign as the beginning of a value."""
    try:
        summary = IMPORTERS.load(name).summary
    except BrokenMethodError as error:
        summary = f"broken, {error}"
    return summary.replace("%", "%%")


def _import(options: argparse.Namespace) -> int:
    from placewire.optimizer.explain.summary import graph_lines
    from placewire.optimizer.graph.graph_file import save_graph
    from placewire.optimizer.graph.importer import import_file
    from placewire.optimizer.graph.json_file import write_json

    own = options_of(IMPORTERS.load(options.format), options)
    imported = import_file(options.file, options.format, own)
    if options.cluster_out is not None and imported.cluster is None:
        raise InputError(f"--cluster-out: format {options.format} describes no cluster")
    save_graph(imported.graph, options.out)
    if options.cluster_out is not None and imported.cluster is not None:
        write_json(options.cluster_out, imported.cluster.model_dump(mode="json"))
    say("\n".join(graph_lines(imported.graph)))
    return DONE
