"""The `controller` command line: parses arguments, runs one command, turns errors to exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from placewire.command_line import INTERRUPTED
from placewire.controller.commands import (
    advise,
    apply,
    attach,
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
    report,
    rollback,
    status,
    verify,
)
from placewire.controller.commands.lasting_output import lost_output, make_output_last
from placewire.controller.commands.talking import begin_output, print_only_json
from placewire.controller.errors import EXIT_CODES, PlacewireError
from placewire.extras import needing
from placewire.standard_streams import open_missing_streams
from placewire.version import add_version
from placewire.visible import visible_lines

_EPILOG = """\
exit codes:
{exit_codes}

try it on this machine, as root:
  controller lab up examples/plans/quickstart.yaml
  controller preview examples/plans/quickstart.yaml
  controller apply examples/plans/quickstart.yaml
  controller lab down examples/plans/quickstart.yaml
"""


class Command(Protocol):
    """A module of `placewire.controller.commands`."""

    PURPOSE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


# In the order in which a new user meets them.
COMMANDS: Mapping[str, Command] = {
    "provision": provision,
    "init": init,
    "doctor": doctor,
    "advise": advise,
    "preview": preview,
    "apply": apply,
    "attach": attach,
    "status": status,
    "verify": verify,
    "rollback": rollback,
    "recover": recover,
    "destroy": destroy,
    "logs": logs,
    "history": history,
    "report": report,
    "authority": authority,
    "enrol": enrol,
    "lab": lab,
    "evaluate": evaluate,
    "demo": demo,
}


def parser() -> argparse.ArgumentParser:
    codes = [f"  {code:>3}  {words}" for code, words in EXIT_CODES.items()]
    top = argparse.ArgumentParser(
        prog="controller",
        description="Places a PyTorch training step over servers, shapes their network for it, "
        "proves the rates, runs the job, and puts everything back.",
        epilog=_EPILOG.format(exit_codes="\n".join(codes)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(top)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.PURPOSE, description=command.PURPOSE)
        command.add_arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> None:
    open_missing_streams()
    make_output_last()
    begin_output()
    made = parser()
    if "_ARGCOMPLETE" in os.environ:  # The user pressed Tab.
        import argcomplete

        argcomplete.autocomplete(made)
    arguments = made.parse_args(argv)
    try:
        with needing("controller"):
            code = COMMANDS[arguments.command].run(arguments)
    except PlacewireError as error:
        sys.stdout.flush()
        print(visible_lines(f"controller: {error}", indent="  "), file=sys.stderr)
        code = error.exit_code
        if getattr(arguments, "json", False):
            print_only_json(error.document())
    except KeyboardInterrupt as interrupt:
        # All that it began is ended. A further Ctrl-C must not change the exit status any more.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code, what = INTERRUPTED, str(interrupt) or "interrupted"
        print(visible_lines(f"controller: {what}", indent="  "), file=sys.stderr)
        if getattr(arguments, "json", False):
            print_only_json({**PlacewireError(what).document(), "exit_code": code})
    if (why := lost_output()) is not None:
        print(f"controller: standard output: {why}; not all of it is written", file=sys.stderr)
        if getattr(arguments, "json", False):  # The document is what was asked for.
            code = code or PlacewireError.exit_code
    raise SystemExit(code)


if __name__ == "__main__":
    main()
