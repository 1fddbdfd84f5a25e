"""Says which servers Ansible's ssh reaches through a jump host or another program."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.ssh_config import settings_of

# Variables of an inventory whose words Ansible gives to ssh.
_WORDS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_OVER_SSH = ("ssh", "smart", "ansible.builtin.ssh")


def is_behind_a_proxy(server: str, variables: Mapping[str, Any]) -> bool:
    """variables: the server's, of all inventories. True, too, where ssh cannot tell, as of a text
    that Ansible has yet to render."""
    if variables.get("ansible_connection", "ssh") not in _OVER_SSH:
        return False
    given = [("-p", variables.get("ansible_port")), ("-l", variables.get("ansible_user"))]
    try:
        words = [word for key in _WORDS for word in shlex.split(str(variables.get(key, "")))]
        words += [word for option, value in given if value for word in (option, str(value))]
        said = settings_of(server, str(variables.get("ansible_host", server)), words)
    except (LaunchFailed, ValueError):
        return True
    return any(said.get(kind, ["none"]) != ["none"] for kind in ("proxyjump", "proxycommand"))
