"""The `optimizer` command: its subcommands, of which it loads only the one that is asked for.

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
from types import ModuleType

from placewire.extras import needing
from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.standard_streams import open_missing_streams
from placewire.version import add_version

# The module of each command under placewire.optimizer, and what the command is for.
COMMANDS = {
    "capture": ("commands.capture", "a PyTorch training step -> a graph without times"),
    "profile": (
        "commands.profile",
        "measure a model's operators here, or model a graph's times on named devices",
    ),
    "import": ("commands.import_graph", "a graph in a published format -> a graph file"),
    "export": ("published.commands.export_graph", "a graph file -> networkx's node-link JSON"),
    "engines": ("commands.engines", "list the placement methods: their papers, what they take"),
    "reductions": ("commands.reductions", "list the ways to make a graph smaller: their papers"),
    "solve": ("commands.solve", "a graph and a cluster -> a placement"),
    "beside": (
        "commands.beside",
        "the graph of another bucket and the first one's placement -> a placement",
    ),
    "advise": (
        "commands.advise",
        "one device, DDP, FSDP, pipelines or us: what to take",
    ),
    "compare": ("published.commands.compare", "methods beside each other: one table, pictures"),
    "explain": ("commands.explain", "why a placement takes as long as it does"),
    "check": ("commands.check", "verify a placement against its graph"),
    "trace": ("commands.trace", "a placement's step for ui.perfetto.dev"),
    "show": ("commands.show", "a graph or a placement in words"),
}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    open_missing_streams()
    if "_ARGCOMPLETE" in os.environ:  # Tab was pressed
        import argcomplete

        argcomplete.autocomplete(parser(with_arguments=True))
    if not given or given[0] not in COMMANDS:
        parser().parse_args(given)  # --help, or a usage error: does not return
    try:
        with needing("optimizer"):
            command: Callable[[list[str], str], int] = _module(given[0]).main
            code = command(given[1:], f"optimizer {given[0]}")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader is gone, as after `| head`. A process that SIGPIPE ends has this exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    return code


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"placewire.optimizer.{COMMANDS[command][0]}")


def parser(*, with_arguments: bool = False) -> argparse.ArgumentParser:
    """with_arguments: the parser has the arguments of every command, which loads all commands."""
    made = argparse.ArgumentParser(
        prog="optimizer",
        description="Where each operator runs, and the bandwidth of each pair of servers.",
        epilog=EXIT_CODES,
    )
    add_version(made)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, purpose) in COMMANDS.items():
        if with_arguments:
            own = _module(name).parser(f"optimizer {name}")
            commands.add_parser(
                name, help=purpose, description=own.description, parents=[own], add_help=False,
                formatter_class=own.formatter_class,
            )  # fmt: skip
        else:
            commands.add_parser(name, help=purpose)
    return made


if __name__ == "__main__":
    sys.exit(main())
