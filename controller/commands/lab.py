"""`controller lab up|down|list`: makes, removes and lists clusters on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from placewire.controller.commands.arguments import add_json, plan_name
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import PlacewireError

PURPOSE = "make a cluster on this machine: namespaces, Open vSwitch and real agents (needs root)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "build the cluster of a plan"
    up = actions.add_parser("up", help=text, description=text)
    up.add_argument("plan", type=Path, metavar="PLAN", help="the plan.yaml")
    text = "remove all that `lab up` made, even if it crashed"
    down = actions.add_parser("down", help=text, description=text)
    down.add_argument("plan", metavar="PLAN|NAME", help="a plan.yaml, or a plan's name")
    text = "list the labs on this machine"
    add_json(actions.add_parser("list", help=text, description=text))


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.lab import lab_down, lab_names, lab_up
    from placewire.controller.plan.plan_file import load_plan

    if arguments.action == "up":
        lab_up(load_plan(arguments.plan), print)
    elif arguments.action == "down":
        name = plan_name(arguments.plan)
        if name not in lab_names():
            raise PlacewireError(
                f"there is no lab {name!r}", remedy="`controller lab list` lists those that exist"
            )
        lab_down(name, print)
    elif arguments.json:
        print_json({"labs": lab_names()})
    else:
        for name in lab_names():
            print(name)
    return 0
