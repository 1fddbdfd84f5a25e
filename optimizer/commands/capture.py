"""`optimizer capture MODEL --out GRAPH.json`: captures a training step as a graph without times."""

from __future__ import annotations

import argparse
import sys

from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.optimizer.commands.model_arguments import (
    add_model_arguments,
    add_research_arguments,
    bucket_of,
    capture_options,
    each_admitted,
)
from placewire.optimizer.commands.outcome import DONE, ended, say
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="A PyTorch training step as an operator graph without times.",
        epilog=EXIT_CODES,
    )
    add_model_arguments(made)
    add_research_arguments(made)
    return made


def main(arguments: list[str] | None = None, prog: str = "optimizer capture") -> int:
    """Returns the exit code: 0 done, 3 where the model or an argument is wrong."""
    return ended(_capture, parser(prog).parse_args(arguments))


def _capture(options: argparse.Namespace) -> int:
    each_admitted(options, _captured)
    return DONE


def _captured(options: argparse.Namespace) -> OperatorGraph:
    asked = capture_options(options)
    say(f"capturing {options.model}, batch {options.batch}")
    from placewire.optimizer.capture.partial_values import capture_part

    # The graph contains only the shapes of parameters, so none of them gets memory or values.
    captured = capture_part(asked, wanted=(), others=False)
    if captured.note:
        say(captured.note)
    graph = bucket_of(captured.step, options).operators
    save_graph(graph, options.out)
    counts = f"{graph.operator_count} operators, {graph.tensor_count} tensors"
    say(f"{options.out}: {counts}, structure {graph.structure_hash[:12]}")
    return graph


if __name__ == "__main__":
    sys.exit(main())
