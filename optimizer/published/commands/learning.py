"""What `optimizer solve` takes for engines that learn."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from placewire.optimizer.names import Feature

if TYPE_CHECKING:
    from placewire.optimizer.problem import Learning

ENGINES = ("hsdag", "placeto")
_CURVES = (".csv", ".png")


def add_learning_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of the engines that learn, hsdag and placeto")
    group.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="begin with this trained policy; with --moves 0 it is applied as it is",
    )
    group.add_argument("--save-policy", type=Path, metavar="FILE", help="write the trained policy")
    group.add_argument(
        "--curve", type=Path, metavar="FILE", help="write the training curve: .csv or .png"
    )
    group.add_argument(
        "--without",
        nargs="+",
        choices=get_args(Feature),
        default=[],
        help="hsdag's ablations: features that its policy leaves out",
    )


def refuse_idle_learning(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """A usage error for what would be without effect; does not return then."""
    files = {
        "--policy": options.policy,
        "--save-policy": options.save_policy,
        "--curve": options.curve,
    }
    given = [name for name, value in (*files.items(), ("--without", options.without)) if value]
    if not given:
        return
    if options.engine not in ENGINES:
        parser.error(f"{given[0]} goes with --engine {' or '.join(ENGINES)}")
    if options.without and options.engine != "hsdag":
        parser.error("--without goes with --engine hsdag")
    if options.without and options.policy is not None:
        parser.error("--without goes with a new policy; that of --policy has its features already")
    if options.curve is not None and options.curve.suffix not in _CURVES:
        parser.error(f"--curve {options.curve} ends in neither {' nor '.join(_CURVES)}")
    if options.sharing == "auto" and (options.save_policy or options.curve):
        parser.error(f"{given[-1]} goes with one sharing; --sharing auto trains for each of them")


def learning_of(options: argparse.Namespace) -> Learning:
    from placewire.optimizer.problem import Learning

    return Learning(
        options.policy, options.save_policy, options.curve, tuple(sorted(set(options.without)))
    )
