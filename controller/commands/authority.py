"""`controller authority issue|deny SERVER`: issues or denies an agent's certificates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.agents.private_files import make_own, write_private
from placewire.controller.commands.arguments import add_json, add_state_dir
from placewire.controller.commands.session import authority_of
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import UsageError
from placewire.optimizer.cluster_plan.values import server_name

if TYPE_CHECKING:
    from placewire.controller.agents.authority import Authority

PURPOSE = "issue or deny the certificates of an agent"
# The authority's own certificate lasts ten years.
_MOST_DAYS = 3650


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "write SERVER.crt, SERVER.key and authority.crt"
    issue = actions.add_parser("issue", help=text, description=text)
    issue.add_argument("server", metavar="SERVER", help="the server's name in the plan")
    issue.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for them")
    issue.add_argument("--days", type=_days, default=30.0, help="lifetime (default: %(default)g)")
    add_json(issue)
    add_state_dir(issue)
    text = "turn away all certificates that SERVER was issued until now"
    deny = actions.add_parser("deny", help=text, description=text)
    deny.add_argument("server", metavar="SERVER", help="the server's name in the plan")
    add_json(deny)
    add_state_dir(deny)


def run(arguments: argparse.Namespace) -> int:
    authority = authority_of(arguments.state_dir)
    if arguments.action == "deny":
        return _deny(authority, arguments.server, as_json=arguments.json)
    server, out, lifetime_seconds = arguments.server, arguments.out, arguments.days * 86_400
    copied = out / authority.certificate_file.name
    try:
        server_name(server)
        make_own(out)
        if out.samefile(authority.certificate_file.parent):
            raise UsageError("is the authority's own folder", where=f"--out {out}")
        issued = authority.issue(server, "agent", out, lifetime_seconds=lifetime_seconds)
        write_private(copied, authority.certificate_file.read_bytes(), mode=0o644)
    except ValueError as error:
        raise UsageError(str(error), where="the server's name") from error
    except OSError as error:
        raise UsageError(
            f"the certificate cannot be written: {error.strerror}",
            where=f"--out {error.filename or out}",
            remedy="give a folder that you own",
        ) from error
    files = [str(file) for file in (issued.certificate_file, issued.key_file, copied)]
    if arguments.json:
        print_json({"server": server, "files": files})
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
            remedy="check the name, whether the folder `ca` in --state-dir can be written to, and "
            "whether another command is stopped (Ctrl-Z) while it writes there",
        ) from error
    if as_json:
        print_json({"server": server, "denied": count})
    else:
        print(
            f"{server}: all certificates that it was issued until now are denied ({count} of them "
            "are recorded here and had not expired); `controller provision PLAN --server "
            f"{server}` or `controller enrol {server}` gives it a new one"
        )
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of days above 0 and up to {_MOST_DAYS}"
        )
    return days
