"""`controller lab up|down|list`: a cluster on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from controller.commands.arguments import plan_name
from controller.errors import PlacewireError

PURPOSE = "a cluster on this machine: namespaces, real Open vSwitch, real agents (needs root)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="build the cluster of a plan")
    up.add_argument("plan", type=Path, metavar="PLAN")
    down = actions.add_parser("down", help="remove all that `lab up` made, also after a crash")
    down.add_argument("plan", metavar="PLAN|NAME")
    actions.add_parser("list", help="labs on this machine")


def run(arguments: argparse.Namespace) -> int:
    from controller.lab import lab_down, lab_names, lab_up
    from controller.plan_file import load_plan

    if arguments.action == "list":
        for name in lab_names():
            print(name)
        return 0
    if arguments.action == "up":
        lab_up(load_plan(arguments.plan), print)
        return 0
    name = plan_name(arguments.plan)
    if name not in lab_names():
        raise PlacewireError(f"there is no lab {name!r}", remedy="`controller lab list` names them")
    lab_down(name, print)
    return 0
