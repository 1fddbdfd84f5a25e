"""`optimizer capture MODEL --out GRAPH.json`: the operator graph, without seconds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.optimizer.commands.model_arguments import add_model_arguments, parse_optimizer
from placewire.optimizer.commands.outcome import DONE, ended
from placewire.optimizer.graph.graph_file import save_graph


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="A PyTorch training step as an operator graph without times.",
        epilog=EXIT_CODES,
    )
    add_model_arguments(made)
    return made


def main(arguments: list[str] | None = None, prog: str = "optimizer capture") -> int:
    """0 done, 3 where the model or an argument is wrong. prog: what it was called as."""
    return ended(_capture, parser(prog).parse_args(arguments))


def _capture(options: argparse.Namespace) -> int:
    choice = parse_optimizer(options.optimizer)
    print(f"capturing {options.model}, batch {options.batch}", file=sys.stderr, flush=True)
    from placewire.optimizer.capture.partial_values import capture_part

    # Shapes are all that the graph tells of parameters: none gets memory or values.
    captured = capture_part(
        options.model, options.batch, choice, options.seed, options.accumulate, options.autocast,
        wanted=(), others=False,
    )  # fmt: skip
    if captured.note:
        print(captured.note, file=sys.stderr)
    graph = captured.step.operators
    save_graph(graph, Path(options.out))
    print(
        f"{graph.operator_count} operators, {graph.tensor_count} tensors, "
        f"structure {graph.structure_hash[:12]}",
        file=sys.stderr,
    )
    return DONE


if __name__ == "__main__":
    sys.exit(main())
