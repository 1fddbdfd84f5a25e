"""`optimizer engines`: every placement method, its paper, and what it can take."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from optimizer.arguments import EXIT_CODES
from optimizer.commands.outcome import DONE

_ALL = (
    "Any may be asked under any model and sharing: a method decides by its own view of the network "
    "and what it finds is scored and checked under yours; what exceeds a memory is refused."
)


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description=f"Placement methods, each with its paper and what it can take. {_ALL}",
        epilog=EXIT_CODES,
    )
    made.add_argument("--json", action="store_true", help="the list as JSON, not as text")
    return made


def main(arguments: list[str], prog: str) -> int:
    options = parser(prog).parse_args(arguments)
    from optimizer.engines.catalog import ENGINES

    if options.json:
        print(json.dumps([{"name": name, **asdict(engine)} for name, engine in ENGINES.items()]))
        return DONE
    for name, engine in ENGINES.items():
        where = f"{engine.paper}, {engine.section}" if engine.section else engine.paper
        print(f"{name:20}{engine.what}")
        print(f"{'':20}from: {where}")
        print(f"{'':20}decides: {engine.decides}; sees: {engine.sees}")
        print(f"{'':20}memory: {engine.memory}; unlike devices: {engine.unlike}")
    print(_ALL)
    return DONE
