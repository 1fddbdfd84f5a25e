"""The story of `controller provision`: install, enrol who has no certificate, see every agent dial
in; or remove."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import AGENT_LIFETIME_SECONDS
from placewire.controller.agents.enrolment import Enrolment
from placewire.controller.agents.enrolment_listener import listening
from placewire.controller.errors import AgentUnreachable, UsageError
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

if TYPE_CHECKING:
    from placewire.controller.agents.authority import Authority
    from placewire.controller.agents.enrolment import Enrolment
    from placewire.controller.plan.plan import Plan

# From when all is installed: enough for every server, one after the other.
_TOKEN_SECONDS = 900.0
_DIAL_SECONDS = 120.0
_CERTIFICATE_SECONDS = 2 * 86_400.0
_CONNECTION = "its agent"


class Telling(Protocol):
    def stage(self, name: str) -> None: ...

    def provisioning(self, told: Progress) -> None: ...


@dataclass
class Site:
    """listens, enrols: (host, TCP port) where agents dial, and where servers ask for their first
    certificate. called: this machine's name or address for servers; None: its address on the way to
    each of them. enrols_from: where a server's request must come from, where that is not its
    management address."""

    plan: Plan
    servers: Sequence[str]
    authority: Authority
    listens: tuple[str, int]
    enrols: tuple[str, int]
    called: str | None
    show: Telling
    enrols_from: Mapping[str, str] = field(default_factory=dict)
    told: list[Progress] = field(default_factory=list)

    def tell(self, one: Progress) -> None:
        self.told.append(one)
        self.show.provisioning(one)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return outcomes(self.servers, self.told)

    def hosts(self) -> dict[str, str]:
        """What each server calls this machine."""
        return {
            server.name: self.called or _address_towards(server.management)
            for server in self.plan.cluster.servers
            if server.name in self.servers
        }

    def controller_urls(self) -> dict[str, str]:
        return {
            server: f"https://{host}:{self.listens[1]}" for server, host in self.hosts().items()
        }


async def install(site: Site, playbooks: Playbooks, *, check: bool) -> dict[str, Outcome]:
    """By server. Raises UsageError where nothing could be begun."""
    site.show.stage("install")
    pinned = {"placewire_authority_sha256": site.authority.sha256}
    await playbooks.run("agent.yaml", site.servers, pinned, site.tell)
    without = [one.server for one in site.told if isinstance(one, Certificate) and not one.serves]
    if check:
        for server in without:
            site.tell(Changed(server, "certificate", "Its own: for a token"))
        return site.outcomes
    if without:
        site.show.stage("enrol")
        await _enrol(site, playbooks, without, pinned)
    site.show.stage("agents")
    await _see_agents(site)
    return site.outcomes


async def remove(site: Site, playbooks: Playbooks) -> dict[str, Outcome]:
    """By server; nothing is changed on any where one's network is shaped."""
    site.show.stage("remove")
    await playbooks.run("remove.yaml", site.servers, {}, site.tell)
    return site.outcomes


async def _enrol(
    site: Site, playbooks: Playbooks, servers: Sequence[str], variables: Mapping[str, str]
) -> None:
    """A token for each, good once, for a quarter of an hour, from its own address."""
    known = {server.name: server.management for server in site.plan.cluster.servers}
    addresses: dict[str, str | None] = {
        server: site.enrols_from.get(server, known[server]) for server in servers
    }
    enrolment = Enrolment(site.authority.sha256, addresses, time.monotonic() + _TOKEN_SECONDS)

    def on_refused(*why: str) -> None:
        """Who it was is known by its address, if that is a server's."""
        waiting = enrolment.missing
        own = [server for server in waiting if why[0].partition(":")[0] == addresses[server]]
        for server in own or waiting:
            site.tell(Noted(server, f"turned away from enrolment: {': '.join(why)}"))

    with tempfile.TemporaryDirectory(prefix="placewire-tokens-") as tokens:
        for server in servers:
            _write_secret(Path(tokens) / f"{server}.token", enrolment.new_token(server).text)
        async with _waiting(site, enrolment, on_refused):
            for host in dict.fromkeys(site.hosts()[server] for server in servers):
                some = [server for server in servers if site.hosts()[server] == host]
                where = {
                    "placewire_tokens": tokens,
                    "placewire_enrol_at": f"{host}:{site.enrols[1]}",
                }
                await playbooks.run("enrol.yaml", some, {**variables, **where}, site.tell)


@asynccontextmanager
async def _waiting(
    site: Site, enrolment: Enrolment, on_refused: Callable[..., None]
) -> AsyncIterator[None]:
    context = site.authority.own_context(lifetime_seconds=_CERTIFICATE_SECONDS, agents_only=False)
    async with listening(
        *site.enrols,
        context,
        site.authority,
        enrolment,
        lifetime_seconds=AGENT_LIFETIME_SECONDS,
        on_enrolled=lambda server: None,
        on_refused=on_refused,
    ):
        yield


async def _see_agents(site: Site) -> None:
    """Listens only now: who dials in runs what was installed."""
    installed = [server for server, one in site.outcomes.items() if one.failure is None]
    if not installed:
        return
    try:
        async with Agents.listening(*site.listens, site.authority) as agents:
            await agents.wait_for(installed, timeout_seconds=_DIAL_SECONDS)
    except UsageError as busy:
        for server in installed:
            site.tell(Noted(server, f"whether its agent dials in was not seen: {busy.what}"))
    except AgentUnreachable as problem:
        for server in problem.servers:
            url = site.controller_urls()[server]
            site.tell(Failed(
                server, _CONNECTION, f"it did not dial in within {_DIAL_SECONDS:.0f} s",
                f"journalctl -u placewire-agent, there; does it reach {url}?",
            ))  # fmt: skip


def _write_secret(file: Path, text: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


def _address_towards(address: str) -> str:
    """This machine's, on the way there. Raises UsageError where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: only chooses a route.
            probe.connect((address, 22))
        except OSError as error:
            raise UsageError(
                f"there is no way to {address}: {error.strerror}",
                where="management",
                remedy="look at the plan's management addresses and this machine's routes; or say "
                "with --controller what servers call this machine",
            ) from error
        return str(probe.getsockname()[0])
