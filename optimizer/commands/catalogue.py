"""What `optimizer engines` and `optimizer reductions` print alike: a catalogue, as text or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from placewire.optimizer.commands.arguments import EXIT_CODES

_NAME_COLUMNS = 20


def catalogue_parser(prog: str, description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=prog, description=description, epilog=EXIT_CODES)
    made.add_argument("--json", action="store_true", help="the list as JSON, not as text")
    return made


def print_catalogue(
    entries: Mapping[Any, Any], details: Callable[[Any], Iterable[str]], *, as_json: bool
) -> None:
    """entries: a catalogue's dataclasses by name, with `what`, `paper` and `section`; details:
    further lines of each."""
    if as_json:
        print(json.dumps([{"name": name, **asdict(entry)} for name, entry in entries.items()]))
        return
    for name, one in entries.items():
        source = f"{one.paper}, {one.section}" if one.section else one.paper
        print(f"{name:{_NAME_COLUMNS}}{one.what}")
        for line in (f"from: {source}", *details(one)):
            print(f"{'':{_NAME_COLUMNS}}{line}")
