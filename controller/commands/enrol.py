"""`controller enrol SERVER[=ADDRESS] ...`: gives servers tokens, then their first certificates."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_place, add_state_dir
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.commands.session import authority_of, listening_place
from placewire.controller.errors import AgentUnreachable, UsageError
from placewire.optimizer.cluster_plan.values import server_name
from placewire.optimizer.quantities import parse_seconds

if TYPE_CHECKING:
    from placewire.controller.agents.enrolment import Enrolment

PURPOSE = "give servers their first certificate, each for a token that is valid once"
_LONGEST_SECONDS = 86_400.0
_POLL_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "servers",
        nargs="+",
        metavar="SERVER[=ADDRESS]",
        help="a server's name in the plan; with an address, only requests from there are answered",
    )
    parser.add_argument(
        "--valid",
        type=_seconds,
        default=900.0,
        metavar="TIME",
        help="how long the tokens are valid (default: 15m)",
    )
    parser.add_argument(
        "--tokens", type=Path, metavar="DIR", help="write each token to DIR/SERVER.token, mode 0600"
    )
    add_place(parser, "--listen", "0.0.0.0:7441", "where servers ask for certificates")
    add_state_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    return interruptible(_enrol(arguments))


async def _enrol(arguments: argparse.Namespace) -> int:
    from placewire.controller.agents.authority import AGENT_LIFETIME_SECONDS
    from placewire.controller.agents.boot_clock import boot_seconds
    from placewire.controller.agents.enrolment import Enrolment
    from placewire.controller.agents.enrolment_listener import listening
    from placewire.controller.agents.refused_connections import FILE, RefusedConnections

    addresses = _addresses(arguments.servers)
    host, port = listening_place(arguments.listen)
    authority = authority_of(arguments.state_dir)
    enrolment = Enrolment(authority.sha256, addresses, boot_seconds() + arguments.valid)
    context = authority.own_context(lifetime_seconds=_LONGEST_SECONDS * 2, agents_only=False)
    refused_connections = RefusedConnections(arguments.state_dir / FILE, _say)
    async with listening(
        host,
        port,
        context,
        authority,
        enrolment,
        lifetime_seconds=AGENT_LIFETIME_SECONDS,
        on_enrolled=lambda server: _say(f"{server}: enrolled"),
        on_refused=refused_connections.note,
    ):
        _hand_out(enrolment, arguments.tokens, port, arguments.valid)
        while enrolment.missing and boot_seconds() < enrolment.expires_seconds:
            await asyncio.sleep(_POLL_SECONDS)
    refused_connections.tell_dropped()
    if enrolment.missing:
        raise AgentUnreachable(enrolment.missing, why="did not enrol while its token was valid")
    return 0


def _addresses(words: list[str]) -> dict[str, str | None]:
    """Parses SERVER[=ADDRESS]: the address, or None, by server. Raises UsageError."""
    found: dict[str, str | None] = {}
    for word in words:
        name, given, address = word.partition("=")
        try:
            server_name(name)
        except ValueError as error:
            raise UsageError(str(error), where=word) from error
        if name in found:
            raise UsageError(f"{name!r} is named twice")
        try:
            found[name] = str(ipaddress.IPv4Address(address)) if given else None
        except ValueError as error:
            raise UsageError(
                f"{address!r} is no IPv4 address", where=word, remedy="write it like s1=10.9.0.1"
            ) from error
    return found


def _hand_out(enrolment: Enrolment, folder: Path | None, port: int, valid_seconds: float) -> None:
    """Prints how to use the tokens, and each token or the file that it was written to."""
    _say(f"on each server, as root, within {valid_seconds:.0f} s: agent enrol HOST:{port} < TOKEN")
    for server in enrolment.addresses:
        shown = token = enrolment.new_token(server).text
        if folder is not None:
            shown = str(_written(folder / f"{server}.token", token))
        _say(f"{server}: {shown}")


def _written(file: Path, token: str) -> Path:
    """Writes a file that only this user can read. Raises UsageError where that is not possible."""
    from placewire.controller.agents.private_files import make_own, write_private

    try:
        make_own(file.parent)
        write_private(file, f"{token}\n".encode())
    except OSError as error:
        raise UsageError(
            f"a token cannot be written: {error.strerror}",
            where=f"--tokens {error.filename or file.parent}",
            remedy="give a folder that you own",
        ) from error
    return file


def _say(line: str) -> None:
    print(line, flush=True)


def _seconds(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0 and up to 24h, like 15m")
    return seconds
