"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

from placewire.controller.errors import PlacewireError, UsageError
from placewire.controller.own_lab import STATE_VARIABLE, own_lab
from placewire.optimizer.graph.named_output import why_not

# Where there is no such folder, no lab is up, and looking for one would take half a second.
_LABS = Path("/run/placewire/lab")


def add_plan(parser: argparse.ArgumentParser, *, previewed: bool = False) -> None:
    """Adds the arguments of a command that talks with the agents of a plan's servers. previewed:
    the command also takes a file that `preview --out` wrote."""
    what = "the plan.yaml, or a file of `preview --out`" if previewed else "the plan.yaml"
    metavar = "PLAN|PREVIEW" if previewed else "PLAN"
    parser.add_argument("plan", type=Path, metavar=metavar, help=what)
    add_json(parser)
    add_link(parser)
    parser.add_argument(
        "--no-lab", action="store_true", help="do not enter the lab of this plan's name"
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of a command that agents dial in to."""
    add_state_dir(parser)
    add_place(parser, "--listen", "0.0.0.0:7440", "where agents dial in")


def add_place(parser: argparse.ArgumentParser, option: str, default: str, what: str) -> None:
    """Adds the option of an address where this process listens."""
    text = f"{what} (default: %(default)s)"
    parser.add_argument(option, default=default, metavar="HOST:PORT", help=text)


def tcp_port(text: str) -> int:
    """Raises argparse.ArgumentTypeError where it is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"{text!r}: give a port from 1 to 65535")
    return int(text)


def user_name(text: str) -> str:
    """Raises argparse.ArgumentTypeError where a user cannot have this name."""
    from placewire.controller.plan.values import user_name as checked

    try:
        return checked(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def require_writable(out: Path | None, *, reads: Path | None = None, option: str = "--out") -> None:
    """Checks the file of an option before long work is done for it. reads: the file that the
    command reads, which it must not replace. Raises UsageError."""
    if out is None:
        return
    if reads is not None and _is_same(out, reads):
        raise UsageError(f"{option} {out}: is the file {reads} itself", remedy="give another name")
    if (why := why_not(out)) is not None:
        raise UsageError(f"{option} {out}: {why}")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # One of them is not there.
        return False


def require_new(out: Path) -> None:
    """Checks that a file would replace nothing, before long work is done for it. Raises
    UsageError."""
    if out.exists():
        raise UsageError(
            f"{out}: is there already, and is not replaced", remedy="name another file"
        )
    if not os.access(out.resolve().parent, os.W_OK):
        raise UsageError(f"{out}: its folder cannot be written to")


def plan_name(text: str) -> str:
    """The name that an argument PLAN|NAME means. Raises PlanError where the plan is not valid, and
    UsageError where the text is neither a file's nor what a plan can be called."""
    if not Path(text).is_file():
        if "." in text or "/" in text:
            raise UsageError(
                f"{text}: there is no such file, and no plan can be called so",
                remedy="give a plan.yaml that is there, or a plan's name",
            )
        return text
    from placewire.controller.plan.plan_file import load_plan

    return load_plan(Path(text), runs_job=False).name


def add_full(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--full",
        action="store_true",
        help="show each server and each change of it, where they are many, too",
    )


def add_network_only(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--network-only", action="store_true", help=what)


def add_no_measurement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-measurement",
        action="store_true",
        help="send no test traffic: rates are only read back from the kernel",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        type=Path,
        action=_Given,
        default=Path(os.environ.get(STATE_VARIABLE, "/var/lib/placewire")),
        help="folder of certificates, journal and cache (default: %(default)s, or the environment "
        "variable PLACEWIRE_STATE_DIR)",
    )
    parser.set_defaults(state_dir_given=False)


class _Given(argparse.Action):
    """Stores the value, and that the command line has one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_given", True)


def state_dir_of(arguments: argparse.Namespace, plan: str) -> Path:
    """The controller's folder for a plan of this name: that of its lab where one is up, as `apply`
    has it, unless the command line names another. arguments: of `add_state_dir`."""
    given: Path = arguments.state_dir
    outside = getattr(arguments, "no_lab", False) or own_lab() is not None
    if arguments.state_dir_given or outside or not _LABS.is_dir():
        return given
    from placewire.controller.lab import find_lab

    with suppress(PlacewireError, OSError):  # Half-made, or another release's: nothing runs in it.
        if (lab := find_lab(plan)) is not None:
            return lab.state_directory
    return given
