"""The `controller` command: arguments, exit codes, and which command runs. No work is done here."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from optimizer.arguments import byte_count, positive
from optimizer.capture.arguments import add_model_arguments

_EPILOG = """\
exit codes: 0 done, 2 usage, 3 the plan is wrong, 4 no feasible placement, 5 an agent is unreachable
or refuses, 6 verification failed and everything was restored, 7 the job failed, 8 restore itself
failed (the message says what is left and where), 130 interrupted and restored.

try it on this machine, as root:
  controller lab up examples/plans/quickstart.yaml
  controller preview examples/plans/quickstart.yaml
  controller apply examples/plans/quickstart.yaml
  controller lab down examples/plans/quickstart.yaml
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="controller",
        description="Places a PyTorch training step over servers, shapes their network for it, "
        "proves the rates, runs the job, and puts everything back.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *, plan: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        if plan:
            sub.add_argument("plan", type=Path, metavar="PLAN", help="the plan.yaml")
            sub.add_argument("--json", action="store_true", help="one JSON document on stdout")
            _add_state_dir(sub)
            sub.add_argument(
                "--listen",
                default="0.0.0.0:7440",
                metavar="HOST:PORT",
                help="where agents dial in (default: %(default)s)",
            )
            sub.add_argument(
                "--no-lab", action="store_true", help="do not enter a lab of this plan's name"
            )
        return sub

    command("preview", "show every change that apply would make; touches nothing")
    apply = command("apply", "place, shape the network, measure, run the job, restore")
    apply.add_argument("--yes", action="store_true", help="do not ask before changing servers")
    apply.add_argument(
        "--network-only", action="store_true", help="shape and measure the network, run no job"
    )
    apply.add_argument("--out", type=Path, metavar="FILE", help="also write the report (run.json)")
    command("status", "what is in force on every server of the plan")
    destroy = command("destroy", "remove all that Placewire made on the plan's servers")
    destroy.add_argument("--yes", action="store_true", help="do not ask")
    _add_authority(commands)
    _add_lab(commands)
    _add_evaluate(commands)
    demo = command("demo", "the main job on this machine, in a lab of its own", plan=False)
    demo.add_argument("--keep-files", type=Path, metavar="DIR", help="keep plans and reports here")
    return top


def _add_authority(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "certificates: an agent's own, issued by this controller's authority"
    authority = commands.add_parser("authority", help=text, description=text)
    actions = authority.add_subparsers(dest="action", required=True, metavar="ACTION")
    issue = actions.add_parser("issue", help="write SERVER.crt, SERVER.key and authority.crt")
    issue.add_argument("server", metavar="SERVER", help="the server's name in the plan")
    issue.add_argument("--out", type=Path, required=True, metavar="DIR")
    issue.add_argument("--days", type=_days, default=30.0, help="lifetime (default: %(default)g)")
    _add_state_dir(issue)


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "profile a step that no device can hold, on several devices of this machine"
    evaluate = commands.add_parser("evaluate", help=text, description=text)
    add_model_arguments(evaluate)
    evaluate.add_argument(
        "--small-batches", type=positive, nargs="+", required=True, metavar="N",
        help="batches that one device can hold, two or more: their memory is extrapolated",
    )  # fmt: skip
    evaluate.add_argument("--devices", type=positive, required=True, help="of this machine")
    evaluate.add_argument(
        "--device-memory", type=byte_count, required=True, help="of each for tensors, like 16GiB"
    )
    evaluate.add_argument(
        "--device-type", default="cpu", help="the name that the times are kept under; default: cpu"
    )
    evaluate.add_argument("--threads", type=positive, default=1, help="of a rank; default: 1")
    evaluate.add_argument(
        "--samples", type=positive, default=9, help="steps recorded of each batch; default: 9"
    )


def _days(text: str) -> float:
    """No longer than the authority's own ten years."""
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= 3650:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, more than 0, to 3650")
    return days


def _add_state_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state-dir",
        type=Path,
        default=Path(os.environ.get("PLACEWIRE_STATE_DIR", "/var/lib/placewire")),
        help="certificates, journal and cache (default: %(default)s)",
    )


def _add_lab(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "a cluster on this machine: namespaces, real Open vSwitch, real agents (needs root)"
    lab = commands.add_parser("lab", help=text, description=text)
    actions = lab.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="build the cluster of a plan")
    up.add_argument("plan", type=Path, metavar="PLAN")
    down = actions.add_parser("down", help="remove all that `lab up` made, also after a crash")
    down.add_argument("plan", metavar="PLAN|NAME")
    actions.add_parser("list", help="labs on this machine")


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    from controller import commands
    from controller.errors import PlacewireError

    try:
        code = commands.run(arguments)
    except PlacewireError as error:
        sys.stdout.flush()
        print(f"controller: {error}", file=sys.stderr)
        if getattr(arguments, "json", False):
            commands.print_json(error.document())
        code = error.exit_code
    except KeyboardInterrupt:
        # All is put back: who insists gets the same exit status, not a death by the signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("controller: interrupted", file=sys.stderr)
        code = 130
    raise SystemExit(code)


if __name__ == "__main__":
    main()
