"""A server whose certificate was denied, of which it cannot know, is enrolled anew."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.connection.identity import keep, new_key, require_serving
from placewire.agent.contract.config import AgentConfig
from placewire.agent.main import dials_elsewhere
from placewire.agent.main import main as agent_main
from placewire.controller.agents.authority import Authority
from placewire.controller.provision.inventory import agent_config
from placewire.controller.provision.playbook import Playbooks
from placewire.controller.provision.progress import Certificate
from placewire.controller.provision.provisioning import Site, install
from tests.controller.plans import plan
from tests.controller.provision.test_provision import (
    URLS,
    ServersHere,
    Silent,
    on_this_machine,
)
from tests.free_port import free_port


def issued(authority: Authority, folder: Path) -> AgentConfig:
    """Gives the server a certificate."""
    own = folder / "agent.pem"
    config = AgentConfig.model_validate(
        agent_config("s1", URLS["s1"])
        | {"certificate_file": str(own), "key_file": str(own), "state_dir": str(folder),
           "authority_file": str(authority.certificate_file)}
    )  # fmt: skip
    key = new_key("s1")
    chain = authority.sign(key.request_pem, "s1", lifetime_seconds=3600)
    keep(own, key.key_pem, chain.decode(), like=folder)
    return config


def test_a_denied_certificate_does_not_serve_and_the_next_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority.load(tmp_path / "ca")
    config = issued(authority, tmp_path)
    assert authority.not_before_unix("s1") is None
    time.sleep(1.1)  # A certificate says in whole seconds when it was issued.
    authority.revocations.deny("s1")
    assert authority.not_before_unix("s2") is None
    require_serving(config, authority.sha256)
    file = tmp_path / "agent.json"
    file.write_text(config.model_dump_json())
    words = ["certificate", "--config", str(file)]
    denied = [*words, "--not-before", str(authority.not_before_unix("s1"))]
    assert agent_main(words) == 0 and agent_main(denied) == 1
    assert "it was denied by `controller authority deny`" in capsys.readouterr().err
    time.sleep(1.1)
    issued(authority, tmp_path)
    assert agent_main(denied) == 0


@pytest.mark.parametrize(
    ("url", "place", "elsewhere"),
    [
        ("https://10.9.0.254:7440", "10.9.0.254:7441", False),
        ("https://10.9.0.254:7440", "10.9.0.253:7441", True),
        ("https://controller.example:7440", "Controller.example:7441", False),
        ("https://[fd00::1]:7440", "[fd00::1]:7441", False),
    ],
)
def test_who_enrols_with_another_machine_than_it_dials_is_told(
    url: str, place: str, elsewhere: bool
) -> None:
    assert dials_elsewhere(url, place) is elsewhere


class Denies(ServersHere):
    """Says as the role does whether a server's certificate serves, and enrols it."""

    async def run(self, playbook: str, servers: Any, variables: Any, on_progress: Any) -> None:
        if playbook == "agent.yaml":
            self.ran.append((playbook, list(servers)))
            for server in servers:
                not_before = variables["placewire_not_before"].get(server)
                try:
                    unix = None if not_before is None else float(not_before)
                    require_serving(self.config(server), None, unix)
                except ValueError:
                    on_progress(Certificate(server, False))
                else:
                    on_progress(Certificate(server, True))
        else:
            assert set(variables["placewire_not_before"]) == {"s1"}
            await super().run(playbook, servers, variables, on_progress)


async def test_a_denied_server_gets_a_token_and_dials_in(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path / "ca")
    servers = Denies(tmp_path, without=[])
    servers.link_port = free_port()
    config = servers.config("s1")
    Path(config.authority_file).write_bytes(authority.certificate_file.read_bytes())
    issued(authority, Path(config.state_dir))
    await asyncio.sleep(1.1)
    authority.revocations.deny("s1")
    site = Site(
        plan(), ["s1"], authority, ("127.0.0.1", servers.link_port), ("127.0.0.1", free_port()),
        "127.0.0.1", Silent(), {"s1": "127.0.0.1"},
    )  # fmt: skip
    try:
        found = await install(site, servers, check=False)
    finally:
        for link in servers.links:
            link.cancel()
    assert found["s1"].failure is None
    assert servers.ran == [("agent.yaml", ["s1"]), ("enrol.yaml", ["s1"])]


@pytest.mark.parametrize(
    ("more", "asked", "enrols"),
    [
        ({"placewire_not_before": {"s1": "17.5"}}, "certificate --not-before 17.5", True),
        ({"placewire_not_before": {"s2": "17.5"}}, "certificate", False),
        ({"placewire_enrol_anew": True}, "certificate", True),
    ],
)
async def test_the_role_asks_for_what_was_denied(
    tmp_path: Path, more: dict[str, Any], asked: str, enrols: bool
) -> None:
    """The stand-in's certificate serves, unless something was denied. It cannot enrol, so that
    nothing is started here."""
    own = on_this_machine(
        tmp_path, f'echo "$*" >> {tmp_path}/asked; [ "$*" = certificate ] || exit 1'
    )
    (tmp_path / "s1.token").write_text("pw1.s1.feed.secret")
    variables = {
        "placewire_home": str(tmp_path), "placewire_tokens": str(tmp_path),
        "placewire_enrol_at": "h:1",
    }  # fmt: skip
    playbooks = Playbooks([own], check=not enrols)
    await playbooks.run("enrol.yaml", ["s1"], variables | more, lambda told: None)
    calls = (tmp_path / "asked").read_text().splitlines()
    assert calls == [asked, *(["enrol h:1"] if enrols else [])]
