"""The commands as a user begins them. An interrupt ends each with one line and one exit status from
its first import on: what a command does about it while it works is its own affair."""

from __future__ import annotations

import signal
import sys
from importlib import import_module

INTERRUPTED = 130

_MODULES = {
    "controller": "placewire.controller.cli",
    "agent": "placewire.agent.main",
    "optimizer": "placewire.optimizer.cli",
}


def controller() -> None:
    _run("controller")


def agent() -> None:
    _run("agent")


def optimizer() -> None:
    _run("optimizer")


def _run(command: str) -> None:
    try:
        sys.exit(import_module(_MODULES[command]).main())
    except KeyboardInterrupt:
        # A further Ctrl-C must not change the exit status any more.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.stderr is not None:
            print(f"{command}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":  # python -m placewire.command_line COMMAND ...
    _run(sys.argv.pop(1))
