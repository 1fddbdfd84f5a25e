"""Keeps the files that a command reads from the files that it writes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path


def refuse_overwriting(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    outputs: Iterable[str],
    more: Iterable[tuple[str, Path]] = (),
) -> None:
    """Ends the program with code 2, before long work, where it would replace a file that it reads,
    or write one file twice. outputs: the options that name files to write; every other option that
    is a Path is read. more: further files to write, each with the option that it is written for."""
    outputs = tuple(outputs)
    written = [(one, Path(getattr(options, one))) for one in outputs if getattr(options, one)]
    written += more
    read = [
        p for name, value in vars(options).items() if name not in outputs for p in _paths(value)
    ]
    for at, (name, path) in enumerate(written):
        flag = f"--{name.replace('_', '-')}"
        if path.exists() and not path.is_file():
            continue  # A device or a pipe is not replaced.
        if found := [one for one in read if _is_same(one, path)]:
            parser.error(
                f"{flag} {path}: is the file {found[0]} that this command reads; give another name"
            )
        if any(_is_same(other, path) for _, other in written[:at]):
            parser.error(f"{flag} {path}: would be written twice; give another name")


def _paths(value: object) -> Iterator[Path]:
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, Path):
            yield one


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # One of them is not there yet.
        return one.resolve() == other.resolve()
