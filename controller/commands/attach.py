"""`controller attach PLAN|NAME`: shows what `apply --detach` prints, until it ends."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from placewire.controller.commands.arguments import add_state_dir, plan_name, state_dir_of
from placewire.controller.errors import PlacewireError, UsageError
from placewire.visible import visible_lines

PURPOSE = "show what `apply --detach` prints, until that ends, and end with its exit code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN|NAME", help="a plan.yaml, or a plan's name")
    parser.add_argument(
        "--stop",
        action="store_true",
        help="interrupt it, as Ctrl-C would: the job ends, and the network is put back",
    )
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.records.detached_output import has_ended, latest_output

    name = plan_name(arguments.plan)
    state_dir = state_dir_of(arguments, name)
    output = latest_output(state_dir / "logs", name)
    if output is None:
        raise UsageError(
            f"no `controller apply --detach` of plan {name!r} was begun here",
            where=str(state_dir),
            remedy=f"`controller status {arguments.plan}` tells of a change under way",
        )
    if arguments.stop:
        if has_ended(output):
            raise UsageError("it has ended already", where=str(output))
        _interrupt(output)
    try:
        return _shown(output)
    except KeyboardInterrupt:
        what = "it was interrupted, and is ending" if arguments.stop else "it goes on"
        raise KeyboardInterrupt(f"no longer shown; {what}") from None


def _interrupt(output: Path) -> None:
    """Raises PlacewireError where it goes on and cannot be interrupted."""
    from placewire.controller.records.detached_output import process_of

    process = process_of(output)
    try:
        if process is None:
            raise ProcessLookupError
        os.kill(process, signal.SIGINT)
    except OSError as error:
        raise PlacewireError(
            "its process is not to be found, or belongs to another user",
            where=str(output),
            remedy="interrupt it as that user; without it, servers go back when their leases end",
        ) from error


def _shown(output: Path) -> int:
    """Prints it as it grows. Returns its exit code."""
    from placewire.controller.records.detached_output import exit_code_in
    from placewire.controller.records.run_log import followed

    for line in followed(output):
        sys.stdout.write(visible_lines(line))
        sys.stdout.flush()
        if (code := exit_code_in(line)) is not None:
            return code
    raise PlacewireError(
        "it was ended from outside before it could say how it ended",
        where=str(output),
        remedy="`controller status` shows what servers hold; `controller recover` puts back",
    )
