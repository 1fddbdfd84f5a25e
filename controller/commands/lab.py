"""`controller lab up|down|list`: a cluster on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from placewire.controller.commands.arguments import add_json, plan_name
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import PlacewireError

PURPOSE = "a cluster on this machine: namespaces, real Open vSwitch, real agents (needs root)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "build the cluster of a plan"
    up = actions.add_parser("up", help=text, description=text)
    up.add_argument("plan", type=Path, metavar="PLAN", help="the plan.yaml")
    text = "remove all that `lab up` made, also after a crash"
    down = actions.add_parser("down", help=text, description=text)
    down.add_argument("plan", metavar="PLAN|NAME", help="a plan.yaml, or a plan's name")
    text = "labs on this machine"
    add_json(actions.add_parser("list", help=text, description=text))


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.lab import lab_down, lab_names, lab_up
    from placewire.controller.plan.plan_file import load_plan

    if arguments.action == "list":
        return _list(lab_names(), as_json=arguments.json)
    if arguments.action == "up":
        lab_up(load_plan(arguments.plan), print)
        return 0
    name = plan_name(arguments.plan)
    if name not in lab_names():
        raise PlacewireError(f"there is no lab {name!r}", remedy="`controller lab list` names them")
    lab_down(name, print)
    return 0


def _list(names: Sequence[str], *, as_json: bool) -> int:
    if as_json:
        print_json({"labs": list(names)})
        return 0
    for name in names:
        print(name)
    return 0
