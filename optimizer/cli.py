"""The `optimizer` command: capture, profile, import, export, engines, reductions, solve, compare,
explain, check, trace, show.

Exit codes: 0 done, 2 usage, 3 bad input, 4 no feasible placement, or violations found by `check`.
Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable

from placewire.optimizer.commands.arguments import EXIT_CODES

# Where each command is and what it is for; only the one that is asked for is loaded.
COMMANDS = {
    "capture": (
        "placewire.optimizer.commands.capture",
        "a PyTorch training step -> a graph without times",
    ),
    "profile": (
        "placewire.optimizer.commands.profile",
        "measure a model's operators here, or model a graph's times on named devices",
    ),
    "import": (
        "placewire.optimizer.commands.import_graph",
        "a published graph format -> a graph file",
    ),
    "export": (
        "placewire.optimizer.published.commands.export_graph",
        "a graph file -> networkx's node-link JSON",
    ),
    "engines": (
        "placewire.optimizer.commands.engines",
        "placement methods: their papers, what they take",
    ),
    "reductions": (
        "placewire.optimizer.commands.reductions",
        "ways to make a graph smaller: their papers",
    ),
    "solve": ("placewire.optimizer.commands.solve", "a graph and a cluster -> a placement"),
    "compare": (
        "placewire.optimizer.published.commands.compare",
        "methods beside each other: one table, pictures",
    ),
    "explain": ("placewire.optimizer.commands.explain", "why a placement takes as long as it does"),
    "check": ("placewire.optimizer.commands.check", "verify a placement against its graph"),
    "trace": ("placewire.optimizer.commands.trace", "a placement's step for ui.perfetto.dev"),
    "show": ("placewire.optimizer.commands.show", "a graph or a placement in words"),
}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:  # `>&-`: what is printed goes nowhere, and what flushes it works
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if "_ARGCOMPLETE" in os.environ:  # Tab was pressed
        import argcomplete

        argcomplete.autocomplete(parser(with_arguments=True))
    if not given or given[0] not in COMMANDS:
        parser().parse_args(given)  # --help, or a usage error: does not return
    module, _ = COMMANDS[given[0]]
    command: Callable[[list[str], str], int] = importlib.import_module(module).main
    try:
        code = command(given[1:], f"optimizer {given[0]}")
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on, as behind `| head`: the exit status of what a SIGPIPE ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    return code


def parser(*, with_arguments: bool = False) -> argparse.ArgumentParser:
    """with_arguments: of every command, which loads them all."""
    made = argparse.ArgumentParser(
        prog="optimizer",
        description="Where each operator runs, and the bandwidth of each pair.",
        epilog=EXIT_CODES,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, purpose) in COMMANDS.items():
        if with_arguments:
            own = importlib.import_module(module).parser(f"optimizer {name}")
            commands.add_parser(
                name, help=purpose, description=own.description, parents=[own], add_help=False,
                formatter_class=own.formatter_class,
            )  # fmt: skip
        else:
            commands.add_parser(name, help=purpose)
    return made


if __name__ == "__main__":
    sys.exit(main())
