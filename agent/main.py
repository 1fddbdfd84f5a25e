"""The `agent` command: runs the daemon, or shows, examines, restores or enrols this server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from placewire.command_line import INTERRUPTED
from placewire.extras import needing
from placewire.standard_streams import open_missing_streams
from placewire.version import add_version
from placewire.visible import visible_lines

if TYPE_CHECKING:
    from placewire.agent.contract.config import AgentConfig

CONFIG_FILE = Path("/etc/placewire/agent.json")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CODES = {
    0: "done; doctor: found nothing worse than a note",
    EXIT_FAILED: "it failed, or something in force does not hold; doctor: found a warning",
    EXIT_USAGE: "usage or configuration is wrong; doctor: found an error",
    INTERRUPTED: "interrupted",
}


def main(arguments: list[str] | None = None) -> int:
    open_missing_streams()
    made = parser()
    if "_ARGCOMPLETE" in os.environ:  # Tab was pressed
        import argcomplete

        argcomplete.autocomplete(made)
    options = made.parse_args(arguments)
    with needing("agent"):
        return _dispatch(options, sys.argv[1:] if arguments is None else arguments)


def parser() -> argparse.ArgumentParser:
    codes = ", ".join(f"{code} {words}" for code, words in EXIT_CODES.items())
    made = argparse.ArgumentParser(
        prog="agent",
        description="Placewire's agent on one training server.",
        epilog=f"exit codes: {codes}",
    )
    add_version(made)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "run the daemon: dial the controller, keep this server's network and its lease"),
        ("status", "show the lease on disk and the network as it is"),
        ("doctor", "look for problems on this server, and say what to do; change nothing"),
        ("restore", "bring the baseline back, while no daemon runs"),
        ("enrol", "get this server's first certificate, with a token from standard input"),
        ("certificate", "say whether this server's certificate is valid; exit 1 where it is not"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "--config", type=Path, default=CONFIG_FILE, help="YAML or JSON (default: %(default)s)"
        )
        if name in ("status", "doctor"):
            command.add_argument("--json", action="store_true", help="print JSON")
        if name == "restore":
            how = command.add_mutually_exclusive_group()
            how.add_argument(
                "--from-marks",
                action="store_true",
                help="where the state on disk is lost or damaged: take back what carries our marks",
            )
            how.add_argument(
                "--give-up",
                metavar="NIC",
                help="forget what is owed to a NIC that was away and never comes back",
            )
        if name == "enrol":
            command.add_argument(
                "controller", metavar="HOST:PORT", help="where `controller enrol` waits"
            )
        if name == "certificate":
            command.add_argument(
                "--authority", metavar="SHA256", help="digest of the authority it must be from"
            )
            command.add_argument(
                "--not-before",
                type=float,
                metavar="UNIX",
                help="seconds since 1970 before which it must not begin, because it is denied then",
            )
    return made


def _dispatch(options: argparse.Namespace, arguments: list[str]) -> int:
    from placewire.agent.privileges import give_root_up
    from placewire.agent.reconcile.effects import EffectError
    from placewire.agent.store import AlreadyRunningError, StoreError

    try:
        config = load_config(options.config)
    except (OSError, ValueError) as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        if options.command in ("run", "restore"):  # What writes the agent's state.
            ended = give_root_up(config, arguments)
            if ended is not None:
                return ended
        if options.command == "run":
            from placewire.agent.daemon import run

            return run(config)
        if options.command == "doctor":
            from placewire.agent.doctor.doctor import doctor

            return doctor(config, as_json=options.json)
        if options.command == "enrol":
            return _enrol(config, options.controller, options.config)
        if options.command == "certificate":
            return _certificate(config, options.authority, options.not_before)
        from placewire.agent import offline

        if options.command == "status":
            return offline.status(config, as_json=options.json)
        if options.from_marks:
            return offline.restore_from_marks(config)
        if options.give_up is not None:
            return offline.give_up(config, options.give_up)
        return offline.restore(config)
    except (AlreadyRunningError, StoreError, EffectError, OSError) as error:
        print(visible_lines(f"agent: {error}", indent="  "), file=sys.stderr)
        return EXIT_FAILED


def _enrol(config: AgentConfig, place: str, file: Path) -> int:
    """Reads the token from standard input: the list of processes shows every argument. file: of the
    configuration."""
    from placewire.agent.connection.enrol import EnrolmentError, enrol

    try:
        enrol(config, place, sys.stdin.readline())
    except EnrolmentError as error:
        print(visible_lines(f"agent: {error}", indent="  "), file=sys.stderr)
        return EXIT_FAILED
    print(f"{config.server}: enrolled; {config.certificate_file}")
    if dials_elsewhere(config.controller_url, place):
        print(
            f"its agent dials {config.controller_url}; where the controller is no longer there, "
            f"change controller_url in {file}, then `systemctl restart placewire-agent`"
        )
    return 0


def dials_elsewhere(controller_url: str, place: str) -> bool:
    """Whether the agent dials another host than HOST:PORT, where it enrolled."""
    return urlsplit(controller_url).hostname != urlsplit(f"//{place}").hostname


def _certificate(
    config: AgentConfig, authority_sha256: str | None, not_before_unix: float | None
) -> int:
    from placewire.agent.connection.identity import require_serving

    try:
        until = require_serving(config, authority_sha256, not_before_unix)
    except (OSError, ValueError) as error:
        print(f"{config.server}: no valid certificate: {error}", file=sys.stderr)
        return EXIT_FAILED
    print(f"{config.server}: its certificate is valid until {until:%Y-%m-%d %H:%M} UTC")
    return 0


def load_config(path: Path) -> AgentConfig:
    """Raises OSError, or ValueError naming the key that is wrong."""
    import yaml
    from pydantic import ValidationError

    from placewire.agent.contract.config import AgentConfig

    try:
        return AgentConfig.model_validate(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(f"{place}: {first['msg']}") from error


if __name__ == "__main__":
    sys.exit(main())
