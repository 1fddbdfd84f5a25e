"""`controller provision PLAN`: installs the agent on the plan's servers, or removes it."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewire.controller.commands.arguments import (
    add_json,
    add_link,
    add_place,
    require_writable,
    user_name,
)
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.commands.session import authority_of, listening_place
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.errors import ProvisionFailed, UsageError

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.provision.progress import Outcome

PURPOSE = "install the agent on the plan's servers over SSH and enrol it, or remove it"

_ENDING = "what is done on servers stays, and the same command goes on from there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="the plan.yaml")
    parser.add_argument(
        "--server", action="append", metavar="SERVER", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--login",
        type=user_name,
        metavar="USER",
        help="the user to log in as, who is root or may use sudo; default: the user who runs this "
        "command, or whom ~/.ssh/config names; never launch.user, whom ranks run as",
    )
    parser.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        help="an Ansible inventory that overrides how the plan says that servers are reached",
    )
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--check", action="store_true", help="show what would change; change nothing")
    does.add_argument(
        "--write-inventory", type=Path, metavar="FILE", help="only write the plan's inventory"
    )
    parser.add_argument("--remove", action="store_true", help="remove all that was installed")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="also servers whose agent obeys another controller, which loses them",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")
    add_json(parser)
    parser.add_argument(
        "--controller",
        metavar="HOST",
        help="the name or address by which servers reach this machine; default: the address of its "
        "interface towards each",
    )
    what = "where servers ask for their first certificate"
    add_place(parser, "--enrol-at", "0.0.0.0:7441", what)
    add_link(parser)


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.plan.plan_file import load_plan

    # The model or script may be copied to the servers later.
    plan = load_plan(arguments.plan, runs_job=False)
    work = _provision(arguments, plan, _servers(plan, arguments.server))
    return interruptible(work, means=_ENDING)


async def _provision(arguments: argparse.Namespace, plan: Plan, servers: Sequence[str]) -> int:
    from placewire.controller.agents.refused_connections import FILE, RefusedConnections
    from placewire.controller.provision.inventory import as_data, inventory
    from placewire.controller.provision.playbook import Playbooks
    from placewire.controller.provision.provisioning import Site, install, remove
    from placewire.controller.records.journal import Journal
    from placewire.controller.show.outcomes import outcome_table
    from placewire.controller.show.story import Show

    show = Show(to_error=arguments.json)
    places = listening_place(arguments.listen), listening_place(arguments.enrol_at)
    authority = authority_of(arguments.state_dir)
    site = Site(plan, servers, authority, *places, arguments.controller, show)
    # The table tells of them, too.
    site.refused_connections = RefusedConnections(arguments.state_dir / FILE)
    # The file does not say it, or every later run with it would take servers over.
    site.takes_over = arguments.take_over and arguments.write_inventory is None
    # A run of Ansible alone has these from the inventory; here the playbooks are given them.
    more = site.variables() if arguments.write_inventory is not None else {}
    derived = inventory(plan, servers, site.controller_urls(), arguments.login, more)
    if arguments.write_inventory is not None:
        return _write(derived, arguments.write_inventory, take_over=arguments.take_over)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="placewire-inventory-"))
        inventories = [Path(folder) / "plan.yaml"]
        inventories[0].write_text(as_data(derived), encoding="utf-8")
        if arguments.inventory is not None:
            inventories.append(arguments.inventory)
            site.enrols_from = look_through(inventories, servers)
        if not arguments.check:
            does = "remove from" if arguments.remove else "install on"
            also = ", also where an agent obeys another controller, which loses the server"
            show.say(f"{does} {', '.join(servers)}{also if site.takes_over else ''}")
            if not await confirmed(yes=arguments.yes):
                raise UsageError("not confirmed; nothing was changed")
            journal = stack.enter_context(Journal.open(arguments.state_dir))
            stack.enter_context(journal.change_lock.exclusive())
        playbooks = Playbooks(inventories, check=arguments.check)
        if arguments.remove:
            found = await remove(site, playbooks, check=arguments.check)
        else:
            found = await install(site, playbooks, check=arguments.check)
    if not arguments.json:
        show.console.print(outcome_table(found, check=arguments.check))
    documents = {server: outcome.document() for server, outcome in found.items()}
    _require_success(found, documents)
    if arguments.json:
        print_json({"servers": documents})
    return 0


def _servers(plan: Plan, wanted: Sequence[str] | None) -> list[str]:
    """The wanted servers, or all, in the plan's order. Raises UsageError where one is not in it."""
    known = [server.name for server in plan.cluster.servers]
    for name in wanted or ():
        if name not in known:
            raise UsageError(
                f"{name!r} is no server of this plan",
                where="--server",
                remedy=f"its servers are {', '.join(known)}",
            )
    return [name for name in known if not wanted or name in wanted]


def look_through(inventories: Sequence[Path], servers: Sequence[str]) -> dict[str, str]:
    """Checks the operator's own inventory, the last one. Returns, by server, the address that the
    inventories give for enrolment. Raises UsageError where the inventory cannot be used."""
    from placewire.controller.provision.inventory import enrolment_addresses, require_valid_configs
    from placewire.controller.provision.playbook import host_variables

    given = inventories[-1]
    if not given.exists():
        raise UsageError("there is no such file", where=f"--inventory {given}")
    named = set(host_variables([given]))
    if not named & set(servers):
        raise UsageError(
            f"names none of {', '.join(servers)}; it has {', '.join(sorted(named)) or 'no host'}",
            where=f"--inventory {given}",
            remedy="name its hosts like the plan's servers; ansible_host gives their address",
        )
    known = host_variables(inventories)
    require_valid_configs(known, servers)
    return enrolment_addresses(known, servers)


def _write(derived: Mapping[str, Any], file: Path, *, take_over: bool) -> int:
    """Writes the inventory for `ansible-playbook`, or to be edited and given to --inventory.
    take_over: only the printed command says so."""
    from placewire.controller.provision.inventory import as_data

    require_writable(file)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write("# Written by `controller provision`; docs/cluster.md.\n")
            out.write("# Ansible takes a text with !unsafe as it stands, not as a template.\n")
            out.write(as_data(derived))
    except FileExistsError as error:
        raise UsageError(
            "exists already", where=f"--write-inventory {file}", remedy="give another name"
        ) from error
    also = " -e placewire_take_over=true" if take_over else ""
    print(f"{file}: ansible-playbook -i {file} playbooks/agent.yaml{also}")
    return 0


def _require_success(
    found: Mapping[str, Outcome], documents: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises ProvisionFailed."""
    failed = {s: one.failure for s, one in found.items() if one.failure is not None}
    if not failed:
        return
    told = [f"{server}: {one.task}: {one.reason}" for server, one in failed.items()]
    raise ProvisionFailed(
        "; ".join(told) if len(told) > 1 else told[0].partition(": ")[2],
        where=", ".join(failed),
        remedy="\n  ".join(dict.fromkeys(one.remedy for one in failed.values())),
        outcomes=documents,
    )
