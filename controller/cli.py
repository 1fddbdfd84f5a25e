"""The `controller` command: arguments, exit codes, and which command runs. No work is done here."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from controller.commands import (
    apply,
    authority,
    demo,
    destroy,
    doctor,
    enrol,
    evaluate,
    history,
    init,
    lab,
    logs,
    preview,
    provision,
    recover,
    rollback,
    status,
    verify,
)
from controller.commands.talking import print_json
from controller.errors import PlacewireError

_EPILOG = """\
exit codes: 0 done, 2 usage, 3 the plan is wrong, 4 no feasible placement, 5 an agent is unreachable
or refuses, 6 the network is not as promised (apply restored everything), 7 the job failed,
8 restore itself failed (the message says what is left and where), 130 interrupted and restored.

try it on this machine, as root:
  controller lab up examples/plans/quickstart.yaml
  controller preview examples/plans/quickstart.yaml
  controller apply examples/plans/quickstart.yaml
  controller lab down examples/plans/quickstart.yaml
"""


class Command(Protocol):
    """A module of `controller.commands`."""

    PURPOSE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


# In the order of a first use.
COMMANDS: Mapping[str, Command] = {
    "provision": provision,
    "init": init,
    "doctor": doctor,
    "preview": preview,
    "apply": apply,
    "status": status,
    "verify": verify,
    "rollback": rollback,
    "recover": recover,
    "destroy": destroy,
    "logs": logs,
    "history": history,
    "authority": authority,
    "enrol": enrol,
    "lab": lab,
    "evaluate": evaluate,
    "demo": demo,
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="controller",
        description="Places a PyTorch training step over servers, shapes their network for it, "
        "proves the rates, runs the job, and puts everything back.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.PURPOSE, description=command.PURPOSE)
        command.add_arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    try:
        code = COMMANDS[arguments.command].run(arguments)
    except PlacewireError as error:
        sys.stdout.flush()
        print(f"controller: {error}", file=sys.stderr)
        if getattr(arguments, "json", False):
            print_json(error.document())
        code = error.exit_code
    except KeyboardInterrupt:
        # All is put back: who insists gets the same exit status, not a death by the signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("controller: interrupted", file=sys.stderr)
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    main()
