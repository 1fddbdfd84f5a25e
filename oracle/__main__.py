"""`python -m placewire.oracle`: takes a snapshot of a server's network; compares two of them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placewire.oracle.differences import NotComparableError, differences
from placewire.oracle.namespace import take_in
from placewire.oracle.snapshot import EXIT_UNREADABLE, UnreadableError, take

EXIT_DIFFERENT = 1
_EPILOG = """\
exit codes: 0 done, or nothing differs; 1 something differs; 2 a network or a file cannot be read,
or the file to write is there already
"""


class NotReplacedError(Exception):
    """The file for a snapshot is there already. The message says what to do."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m placewire.oracle",
        description="Take a snapshot of a server's network, and say what differs from another. It "
        "changes nothing, and shares no code with the agent.",
        epilog=_EPILOG,
    )
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "print a snapshot of this server's network, or write it to a file"
    taking = actions.add_parser("take", help=text, description=text)
    taking.add_argument(
        "--out", type=Path, metavar="FILE", help="write it there; the file must not be there yet"
    )
    text = "say what differs between two snapshots; exits with 1 where something does"
    comparing = actions.add_parser("compare", help=text, description=text)
    comparing.add_argument("before", type=Path, metavar="BEFORE", help="a snapshot")
    comparing.add_argument(
        "now", type=Path, nargs="?", metavar="NOW", help="a later one; default: one taken now"
    )
    for action in (taking, comparing):
        action.add_argument("--namespace", metavar="NAME", help="of this network namespace")
        action.add_argument(
            "--run-dir", metavar="DIR", help="the folder of Open vSwitch's sockets; default: where "
            "its package has them"
        )  # fmt: skip
    return top


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    try:
        if arguments.action == "take":
            _write(_taken(arguments), arguments.out)
            return 0
        before = _read(arguments.before)
        now = _taken(arguments) if arguments.now is None else _read(arguments.now)
        found = differences(before, now)
    except (UnreadableError, NotComparableError, NotReplacedError, OSError) as error:
        print(f"oracle: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    print("\n".join(found) if found else "nothing differs")
    return EXIT_DIFFERENT if found else 0


def _taken(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.namespace is not None:
        return take_in(arguments.namespace, arguments.run_dir)
    if arguments.run_dir is not None:
        os.environ["OVS_RUNDIR"] = arguments.run_dir
    return take()


def _write(taken: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(taken, indent=1, sort_keys=True) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        try:
            file = out.open("x")
        except FileExistsError:
            raise NotReplacedError(
                f"{out} is there already, and is not replaced: name another file"
            ) from None
        try:
            with file:
                file.write(text)
        except OSError:
            out.unlink()  # Half a snapshot would keep the next one out.
            raise


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise NotComparableError(f"{path} is no snapshot, or is damaged: {error}") from error
    if not isinstance(found, dict):
        raise NotComparableError(f"{path} is no snapshot")
    return found


if __name__ == "__main__":
    sys.exit(main())
