"""Makes an Ansible inventory of a plan: how servers are reached, and their agents' configuration.

Ansible renders texts of an inventory as templates, which can run programs on this machine. So every
text that we write for it is marked as data (`!unsafe`), whatever it says.

All functions are pure. Settings that all servers share are variables of the group `all`, and only
addresses and configurations are a host's own. So the operator's own inventory, given beside this
one, overrides what it states itself and nothing else.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from placewire.agent.contract.config import AgentConfig
from placewire.controller.errors import UsageError
from placewire.controller.plan.plan import Plan, SshLaunch

CONFIG = "placewire_agent_config"
ENROLS_FROM = "placewire_enrols_from"

# deploy/placewire-agent.service and playbooks/roles/settings/vars/main.yaml name the same folder.
STATE_DIR = "/var/lib/placewire"


# Names that stand for something else in an inventory.
_RESERVED = ("all", "ungrouped", "localhost")


class _Data(str):
    """A text that Ansible must take as it is."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Data, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text), style="'")
)


def as_data(document: Mapping[str, Any]) -> str:
    """Returns YAML for Ansible in which every text is data, and no template."""
    return yaml.dump(_marked(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _marked(value: Any) -> Any:
    if isinstance(value, str):
        return _Data(value)
    if isinstance(value, Mapping):
        return {key: _marked(one) for key, one in value.items()}
    return [_marked(one) for one in value] if isinstance(value, list | tuple) else value


def inventory(
    plan: Plan,
    servers: Sequence[str],
    controller_urls: Mapping[str, str],
    login: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """servers: those to list. controller_urls: where each one's agent dials, by server. login: the
    user to log in as, who may become root; None: the one whom ssh itself takes. more: variables of
    all servers. Raises UsageError where a server's name means something else to Ansible."""
    for server in servers:
        if server in _RESERVED:
            raise UsageError(
                f"a server cannot be called {server} where Ansible is to reach it",
                where="cluster.servers",
                remedy="give it another name in the plan",
            )
    hosts = {
        server.name: {
            "ansible_host": server.management,
            CONFIG: agent_config(server.name, controller_urls[server.name]),
        }
        for server in plan.cluster.servers
        if server.name in servers
    }
    return {"all": {"vars": {**_reached(plan.launch, login), **(more or {})}, "hosts": hosts}}


def agent_config(server: str, controller_url: str) -> dict[str, Any]:
    """Returns agent.json without the management interface, which the playbook finds itself."""
    own = f"{STATE_DIR}/agent.pem"
    config = AgentConfig(
        server=server,
        controller_url=controller_url,
        # Key and certificate are one file, so that both are renewed at once.
        certificate_file=own,
        key_file=own,
        authority_file=f"{STATE_DIR}/authority.crt",
        state_dir=STATE_DIR,
    )
    return config.model_dump(mode="json", exclude_unset=True)


def require_valid_configs(
    hostvars: Mapping[str, Mapping[str, Any]], servers: Sequence[str]
) -> None:
    """hostvars: all variables, by host. Raises UsageError, which names the server and the key."""
    for server in servers:
        try:
            config = AgentConfig.model_validate(hostvars[server].get(CONFIG))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in (CONFIG, *first["loc"]))
            raise UsageError(
                f"{place}: {first['msg']}",
                where=server,
                remedy="correct it in the inventory, or leave it to the plan; docs/cluster.md",
            ) from error
        if config.server != server:
            raise UsageError(
                f"{CONFIG}.server is {config.server!r}",
                where=server,
                remedy="a server has its name in the plan; leave it out of the inventory",
            )


def enrolment_addresses(
    hostvars: Mapping[str, Mapping[str, Any]], servers: Sequence[str]
) -> dict[str, str]:
    """Returns addresses that servers enrol from where not from `management`. Raises UsageError."""
    found = {s: str(hostvars[s][ENROLS_FROM]) for s in servers if hostvars[s].get(ENROLS_FROM)}
    for server, address in found.items():
        try:
            ipaddress.IPv4Address(address)
        except ValueError as error:
            raise UsageError(
                f"{ENROLS_FROM} is {address!r}, no IPv4 address",
                where=server,
                remedy="give the server's address as the controller sees it, like 10.9.0.1",
            ) from error
    return found


def _reached(launch: SshLaunch | None, login: str | None) -> dict[str, Any]:
    """Returns how Ansible reaches servers: with the settings of `launch`, but for its user, who has
    no privilege."""
    found: dict[str, Any] = {
        "ansible_python_interpreter": "/usr/bin/python3",
        # Otherwise ssh would ask for a passphrase where nobody sees the question.
        "ansible_ssh_common_args": "-o BatchMode=yes",
    }
    if login is not None:
        found["ansible_user"] = login
    if launch is None:
        return found
    if launch.port is not None:
        found["ansible_port"] = launch.port
    if launch.key is not None:
        found["ansible_ssh_private_key_file"] = str(Path(launch.key).expanduser().resolve())
    if launch.known_hosts is not None:
        file = Path(launch.known_hosts).expanduser().resolve()
        only = ["-o", f'UserKnownHostsFile="{file}"', "-o", "GlobalKnownHostsFile=/dev/null"]
        found["ansible_ssh_common_args"] += f" {shlex.join(only)}"
    return found
