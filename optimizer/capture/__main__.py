"""`python -m optimizer.capture MODEL --out GRAPH.json`: the operator graph, without seconds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimizer.capture.arguments import add_model_arguments, parse_optimizer
from optimizer.capture.errors import CaptureError
from optimizer.graph import save_graph


def main(arguments: list[str] | None = None) -> int:
    """0 done, 3 where the model or an argument is wrong."""
    parser = argparse.ArgumentParser(prog="optimizer.capture", description=__doc__)
    add_model_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        choice = parse_optimizer(options.optimizer)
        print(f"capturing {options.model}, batch {options.batch}", file=sys.stderr, flush=True)
        from optimizer.capture.step import capture

        graph = capture(options.model, options.batch, choice, options.seed).operators
    except CaptureError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    save_graph(graph, Path(options.out))
    print(
        f"{graph.operator_count} operators, {graph.tensor_count} tensors, "
        f"structure {graph.structure_hash[:12]}",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
