"""Argument types that the optimizer's commands share, and the exit codes.

Each type raises argparse.ArgumentTypeError with what it accepts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from placewire.command_line import INTERRUPTED
from placewire.optimizer import quantities
from placewire.optimizer.graph.named_output import why_not

CODES = {
    0: "done",
    2: "usage",
    3: "a wrong file, model or value",
    4: "no feasible placement, or violations found by check",
    INTERRUPTED: "interrupted",
}
EXIT_CODES = "exit codes: " + ", ".join(f"{code} {words}" for code, words in CODES.items())


def output_file(text: str) -> Path:
    """A file that can be written to."""
    path = Path(text)
    why = "ends in /; name a file" if text.endswith("/") else why_not(path)
    if why is not None:
        raise argparse.ArgumentTypeError(f"{path}: {why}")
    return path


def seconds(text: str) -> float:
    """60, 60s or 2min, in seconds; more than 0."""
    try:
        value = float(text)
    except ValueError:
        try:
            value = quantities.parse_seconds(text)
        except ValueError:
            value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds, like 60")
    return value


def duration(text: str) -> float:
    """50us, in seconds; 0 or more."""
    return _quantity(text, quantities.parse_seconds)


def bits_per_second(text: str) -> float:
    """160Gbit; more than 0."""
    return _quantity(text, quantities.parse_bits_per_second, more_than_none=True)


def byte_count(text: str) -> int:
    """16GiB; more than 0."""
    return int(_quantity(text, quantities.parse_bytes, more_than_none=True))


def _quantity(text: str, parse: Callable[[object], float], more_than_none: bool = False) -> float:
    try:
        value = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if more_than_none and not value > 0:
        raise argparse.ArgumentTypeError(f"{text} must be more than 0")
    return value


def fraction(text: str) -> float:
    """5% or 0.05, as 0.05; below 1."""
    value = _quantity(text, quantities.parse_fraction)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0% to less than 100%, like 5%")
    return value


def part(text: str) -> float:
    """80% or 0.8, as 0.8; at most 1."""
    value = _quantity(text, quantities.parse_fraction)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0% to 100%, like 80%")
    return value


def whole(text: str) -> int:
    """0 or more, within 63 bits."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """1 or more, within 63 bits."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
    return value


def add_search_limits(parser: argparse.ArgumentParser, otherwise: str = "") -> None:
    """otherwise: what the number of moves is for engines that make none."""
    parser.add_argument(
        "--gap", type=fraction, default=0.05, help="stop this near to the bound; default: 5%%"
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        help="seconds for reading and the search, which has at least half; default: 60",
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of the search; default: 0")
    moves = (
        "a number of annealing moves instead of the time limit, so that the answer is repeatable"
    )
    parser.add_argument(
        "--moves", type=whole, help="; ".join(one for one in (moves, otherwise) if one)
    )
