"""Prints a command's JSON document, and asks the user to confirm."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from placewire.controller.commands.answers import Answer
from placewire.controller.errors import UsageError
from placewire.visible import json_document

_printed = [False]


def print_json(answer: Answer) -> None:
    print_document(answer)


def print_document(document: Mapping[str, object]) -> None:
    """Also of what is a file's document, too, or an error's."""
    _printed[0] = True
    sys.stdout.write(json_document(document, indent=2) + "\n")


def begin_output() -> None:
    """To be called at the start of a command: it has printed no document yet."""
    _printed[0] = False


def print_only_json(document: Mapping[str, object]) -> None:
    """Prints it where the command has printed none: one command prints one document."""
    if not _printed[0]:
        print_document(document)


async def confirmed(*, yes: bool, question: str = "Change these servers?") -> bool:
    """yes: the user said so on the command line. Raises UsageError where no terminal can ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to confirm at; nothing was changed", remedy="give --yes"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return (await _typed_line()).strip().lower() in ("y", "yes")


async def _typed_line() -> str:
    """Reads a line while the event loop goes on to serve agents and to see an interrupt."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline()
