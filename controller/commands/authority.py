"""`controller authority issue SERVER`, `deny SERVER`: agents' certificates."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_json, add_state_dir
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import UsageError
from placewire.optimizer.cluster_plan.values import server_name

if TYPE_CHECKING:
    from placewire.controller.agents.authority import Authority

PURPOSE = "certificates: issue an agent's own, or deny those that it has"
# No longer than the authority's own ten years.
_MOST_DAYS = 3650


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "write SERVER.crt, SERVER.key and authority.crt"
    issue = actions.add_parser("issue", help=text, description=text)
    issue.add_argument("server", metavar="SERVER", help="the server's name in the plan")
    issue.add_argument("--out", type=Path, required=True, metavar="DIR", help="where they go")
    issue.add_argument("--days", type=_days, default=30.0, help="lifetime (default: %(default)g)")
    add_json(issue)
    add_state_dir(issue)
    text = "turn away the certificates that SERVER has now"
    deny = actions.add_parser("deny", help=text, description=text)
    deny.add_argument("server", metavar="SERVER", help="the server's name in the plan")
    add_json(deny)
    add_state_dir(deny)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.agents.authority import Authority

    authority = Authority.load(arguments.state_dir / "ca")
    if arguments.action == "deny":
        return _deny(authority, arguments.server, as_json=arguments.json)
    lifetime_seconds = arguments.days * 86_400
    issued = authority.issue(
        arguments.server, "agent", arguments.out, lifetime_seconds=lifetime_seconds
    )
    try:
        copied = shutil.copy(authority.certificate_file, arguments.out)
    except OSError as error:
        raise UsageError(
            f"--out {arguments.out}: the authority's certificate cannot be copied there: {error}"
        ) from error
    files = [str(file) for file in (issued.certificate_file, issued.key_file, copied)]
    if arguments.json:
        print_json({"server": arguments.server, "files": files})
    else:
        print("\n".join(files))
    return 0


def _deny(authority: Authority, server: str, *, as_json: bool) -> int:
    try:
        server_name(server)
        count = authority.revocations.deny(server)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"nothing was denied: {error}",
            where=server,
            remedy="look at the name, and at the authority's folder in --state-dir",
        ) from error
    if as_json:
        print_json({"server": server, "denied": count})
        return 0
    print(
        f"{server}: denied, all that it was issued until now ({count} are noted here and valid); "
        "`controller enrol` would give it a new one"
    )
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of days, more than 0, to {_MOST_DAYS}"
        )
    return days
