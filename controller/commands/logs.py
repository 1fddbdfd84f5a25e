"""`controller logs PLAN|NAME`: shows what the ranks of a plan's last run printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from placewire.controller.commands.arguments import add_json, add_state_dir, plan_name, state_dir_of
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import UsageError
from placewire.optimizer.commands.arguments import positive, whole
from placewire.visible import visible_lines

PURPOSE = "show what the ranks of a plan's last run printed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN|NAME", help="a plan.yaml, or a plan's name")
    parser.add_argument("--rank", type=whole, metavar="N", help="only of this rank")
    parser.add_argument(
        "--back", type=positive, default=1, metavar="N",
        help="which run: 1 is the last one (the default), 2 the one before it, …",
    )  # fmt: skip
    parser.add_argument(
        "--follow", action="store_true", help="go on with what they print, until the run has ended"
    )
    add_json(parser)
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.records.run_log import printed, runs_of

    name = plan_name(arguments.plan)
    state_dir = state_dir_of(arguments, name)
    found = runs_of(state_dir / "logs", name)
    if len(found) < arguments.back:
        raise UsageError(
            f"{len(found)} runs of plan {name!r} have a log here",
            where=str(state_dir),
            remedy="`controller history` lists the runs that this machine started",
        )
    if arguments.follow:
        if arguments.json:
            raise UsageError("--follow prints lines, and no document", remedy="leave out --json")
        return _follow(found[-arguments.back], arguments.rank)
    with found[-arguments.back].open(encoding="utf-8", errors="replace", newline="\n") as log:
        if arguments.rank is not None:
            ranks = sorted({one.rank for one in printed(log)})
            if arguments.rank not in ranks:
                raise UsageError(
                    f"rank {arguments.rank} printed nothing in this run",
                    where=str(found[-arguments.back]),
                    remedy=f"ranks that printed: {', '.join(map(str, ranks)) or 'none'}",
                )
            log.seek(0)
        if arguments.json:
            lines = [asdict(o) for o in printed(log) if arguments.rank in (None, o.rank)]
            print_json({"log": str(found[-arguments.back]), "lines": lines})
        else:
            sys.stdout.writelines(_lines(log, arguments.rank))
    return 0


def _follow(log: Path, rank: int | None) -> int:
    from placewire.controller.records.run_log import followed

    try:
        for line in _lines(followed(log), rank):
            sys.stdout.write(line)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass  # The usual way to end it.
    return 0


def _lines(log: Iterable[str], rank: int | None) -> Iterator[str]:
    """rank: None for those of all ranks."""
    from placewire.controller.records.run_log import rank_mark, says_left_out

    mark = None if rank is None else f" {rank_mark(rank)}"
    for line in log:
        if mark is None or mark in line[: len("HH:MM:SS") + len(mark)] or says_left_out(line):
            yield visible_lines(line)
