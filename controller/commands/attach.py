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

PURPOSE = "show what `apply --detach` prints, until it ends; its exit code is this command's"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN|NAME", help="a plan.yaml, or a plan's name")
    parser.add_argument(
        "--stop",
        action="store_true",
        help="interrupt it, as Ctrl-C would: the job ends, and the network is put back",
    )
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.records.detached_output import outputs_of, process_of

    name = plan_name(arguments.plan)
    state_dir = state_dir_of(arguments, name)
    found = outputs_of(state_dir / "logs", name)
    if not found:
        raise UsageError(
            f"no `controller apply --detach` of plan {name!r} was begun here",
            where=str(state_dir),
            remedy=f"`controller status {arguments.plan}` tells of a change under way",
        )
    if arguments.stop:
        process = process_of(found[-1])
        if process is None:
            raise UsageError("it has ended already", where=str(found[-1]))
        os.kill(process, signal.SIGINT)
    return _shown(found[-1])


def _shown(output: Path) -> int:
    """Prints it as it grows; Ctrl-C ends this command alone. Returns its exit code."""
    from placewire.controller.records.detached_output import exit_code_in
    from placewire.controller.records.run_log import followed

    code = None
    try:
        for line in followed(output):
            code = exit_code_in(line)
            sys.stdout.write(visible_lines(line))
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("controller: no longer shown; it goes on", file=sys.stderr)
        return 0
    if code is None:
        raise PlacewireError(
            "it was ended from outside before it could say how it ended",
            where=str(output),
            remedy="`controller status` shows what servers hold; `controller recover` puts back",
        )
    return code
