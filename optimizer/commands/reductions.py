"""`optimizer reductions`: every way to make a graph smaller, its paper, and what it can take."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from optimizer.arguments import EXIT_CODES
from optimizer.commands.outcome import DONE


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="Ways to make a graph smaller before the search (--reduction), each with its "
        "paper and what it can take. All keep the graph acyclic and co-located operators together, "
        "and tie nothing that no device can hold or run.",
        epilog=EXIT_CODES,
    )
    made.add_argument("--json", action="store_true", help="the list as JSON, not as text")
    return made


def main(arguments: list[str], prog: str) -> int:
    options = parser(prog).parse_args(arguments)
    from optimizer.reductions.catalog import REDUCTIONS

    if options.json:
        print(json.dumps([{"name": name, **asdict(one)} for name, one in REDUCTIONS.items()]))
        return DONE
    for name, one in REDUCTIONS.items():
        print(f"{name:20}{one.what}")
        print(f"{'':20}from: {f'{one.paper}, {one.section}' if one.section else one.paper}")
        print(f"{'':20}takes: {one.takes}")
    return DONE
