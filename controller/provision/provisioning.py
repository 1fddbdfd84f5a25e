"""Carries out `controller provision`: installs and enrols agents, sees them dial in; or removes."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import AGENT_LIFETIME_SECONDS, Authority
from placewire.controller.agents.boot_clock import boot_seconds
from placewire.controller.agents.enrolment import Enrolment
from placewire.controller.agents.enrolment_listener import listening
from placewire.controller.agents.refused_connections import RefusedConnections
from placewire.controller.errors import AgentUnreachable, UsageError
from placewire.controller.plan.plan import Plan
from placewire.controller.provision.playbook import Playbooks
from placewire.controller.provision.progress import (
    Certificate,
    Changed,
    Failed,
    Noted,
    Outcome,
    Progress,
    outcomes,
)

# A token is made when all is installed; it must last while servers enrol one after the other.
_TOKEN_SECONDS = 900.0
_DIAL_SECONDS = 120.0
_CERTIFICATE_SECONDS = 2 * 86_400.0
# Of clients that are none of the servers, so many refusals are told of each server.
_MOST_STRANGE = 4


class Telling(Protocol):
    def stage(self, name: str) -> None: ...

    def provisioning(self, told: Progress) -> None: ...


@dataclass
class Site:
    """listens: (host, TCP port) that agents dial. enrols: (host, TCP port) where servers ask for
    their first certificate. called: the name or address that servers use for this machine; None:
    its address on the route to each of them. enrols_from: the addresses that servers' requests must
    come from, where these are not the management addresses. takes_over: also servers whose agents
    obey another controller. refused_connections: notes every client that is turned away, at either
    port."""

    plan: Plan
    servers: Sequence[str]
    authority: Authority
    listens: tuple[str, int]
    enrols: tuple[str, int]
    called: str | None
    show: Telling
    enrols_from: Mapping[str, str] = field(default_factory=dict)
    refused_connections: RefusedConnections = field(default_factory=RefusedConnections)
    takes_over: bool = False
    told: list[Progress] = field(default_factory=list)

    def tell(self, one: Progress) -> None:
        self.told.append(one)
        self.show.provisioning(one)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return outcomes(self.servers, self.told)

    def hosts(self) -> dict[str, str]:
        """Returns the name or address that each server uses for this machine."""
        return {
            server.name: self.called or _address_towards(server.management)
            for server in self.plan.cluster.servers
            if server.name in self.servers
        }

    def variables(self) -> dict[str, Any]:
        """Returns what the playbooks are told of the authority."""
        begins = {server: self.authority.not_before_unix(server) for server in self.servers}
        told: dict[str, Any] = {
            "placewire_authority_sha256": self.authority.sha256,
            "placewire_not_before": {s: f"{unix:.3f}" for s, unix in begins.items() if unix},
        }
        # Otherwise an inventory may say so of a server.
        return told | ({"placewire_take_over": True} if self.takes_over else {})

    def controller_urls(self) -> dict[str, str]:
        return {
            server: f"https://{host}:{self.listens[1]}" for server, host in self.hosts().items()
        }


async def install(site: Site, playbooks: Playbooks, *, check: bool) -> dict[str, Outcome]:
    """Returns outcomes by server. Raises UsageError where Ansible could not run at all."""
    site.show.stage("preview" if check else "install")
    variables = site.variables()
    await playbooks.run("agent.yaml", site.servers, variables, site.tell)
    without = [one.server for one in site.told if isinstance(one, Certificate) and not one.serves]
    if check:
        for server in without:
            site.tell(Changed(server, "certificate", "first certificate, for a token"))
        return site.outcomes
    if without:
        site.show.stage("enrol")
        await _enrol(site, playbooks, without, variables)
    site.show.stage("agents")
    await _see_agents(site)
    return site.outcomes


async def remove(site: Site, playbooks: Playbooks, *, check: bool) -> dict[str, Outcome]:
    """Returns outcomes by server. Changes nothing on any server where one's network is shaped, or
    its agent obeys another controller."""
    site.show.stage("preview" if check else "remove")
    await playbooks.run("remove.yaml", site.servers, site.variables(), site.tell)
    return site.outcomes


async def _enrol(
    site: Site, playbooks: Playbooks, servers: Sequence[str], variables: Mapping[str, Any]
) -> None:
    """Gives each server a token, which is good once, for _TOKEN_SECONDS, from its own address."""
    known = {server.name: server.management for server in site.plan.cluster.servers}
    addresses: dict[str, str | None] = {
        server: site.enrols_from.get(server, known[server]) for server in servers
    }
    enrolment = Enrolment(site.authority.sha256, addresses, boot_seconds() + _TOKEN_SECONDS)

    def say(line: str) -> None:
        """Notes it at the server that has the caller's address, else at all that still wait."""
        waiting, told = enrolment.missing, line.removeprefix("turned away: ")
        own = [server for server in waiting if told.partition(":")[0] == addresses[server]]
        for server in own or waiting:
            site.tell(Noted(server, f"turned away from enrolment: {told}"))

    shown = RefusedConnections(say=say)

    def on_refused(address: str, why: str) -> None:
        site.refused_connections.note(address, why)
        shown.note(address, why)

    context = site.authority.own_context(lifetime_seconds=_CERTIFICATE_SECONDS, agents_only=False)
    with tempfile.TemporaryDirectory(prefix="placewire-tokens-") as tokens:
        for server in servers:
            _write_secret(Path(tokens) / f"{server}.token", enrolment.new_token(server).text)
        async with listening(
            *site.enrols,
            context,
            site.authority,
            enrolment,
            lifetime_seconds=AGENT_LIFETIME_SECONDS,
            on_enrolled=lambda server: None,
            on_refused=on_refused,
        ):
            hosts = site.hosts()
            for host in dict.fromkeys(hosts[server] for server in servers):
                some = [server for server in servers if hosts[server] == host]
                at = {"placewire_tokens": tokens, "placewire_enrol_at": f"{host}:{site.enrols[1]}"}
                await playbooks.run("enrol.yaml", some, {**variables, **at}, site.tell)
        shown.tell_dropped()


async def _see_agents(site: Site) -> None:
    """Listens only after the installation: an agent that dials in now runs what was installed."""
    installed = [server for server, one in site.outcomes.items() if one.failure is None]
    if not installed:
        return
    refused = site.refused_connections
    told_before = set(refused.told)
    try:
        async with Agents.listening(*site.listens, site.authority, refused) as agents:
            await agents.wait_for(installed, timeout_seconds=_DIAL_SECONDS)
    except UsageError as busy:
        for server in installed:
            site.tell(Noted(server, f"it is not known whether its agent dials in: {busy.what}"))
    except AgentUnreachable as problem:
        lines = [line for line in refused.told if line not in told_before]
        turned_away = _turned_away(lines, _addresses(site))
        for server in problem.servers:
            url = site.controller_urls()[server]
            for line in turned_away[server]:
                site.tell(Noted(server, f"turned away meanwhile: {line}"))
            site.tell(Failed(
                server, "its agent", f"it did not dial in within {_DIAL_SECONDS:.0f} s",
                f"look there whether it reaches {url}: journalctl -u placewire-agent",
            ))  # fmt: skip


def _addresses(site: Site) -> dict[str, str]:
    """By server, the address that its requests come from."""
    known = {server.name: server.management for server in site.plan.cluster.servers}
    return {**known, **site.enrols_from}


def _turned_away(lines: Sequence[str], addresses: Mapping[str, str]) -> dict[str, list[str]]:
    """By server, the refusals of its own address, and the last few of addresses of none. lines:
    each begins with an address. addresses: of all servers."""
    of: dict[str, list[str]] = {}
    for line in lines:
        of.setdefault(line.partition(":")[0], []).append(line)
    known = set(addresses.values())
    strange = [line for line in lines if line.partition(":")[0] not in known]
    return {
        server: [*of.get(address, ()), *strange[-_MOST_STRANGE:]]
        for server, address in addresses.items()
    }


def _write_secret(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)


def _address_towards(address: str) -> str:
    """Returns this machine's address on the route there. Raises UsageError where none exists."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 22))  # of a UDP socket: sends nothing, only chooses the route
        except OSError as error:
            raise UsageError(
                f"this machine has no route to {address}: {error.strerror}",
                where="management",
                remedy="look at the plan's management addresses and this machine's routes; or give "
                "with --controller the name that servers use for this machine",
            ) from error
        return str(probe.getsockname()[0])
