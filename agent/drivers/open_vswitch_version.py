"""Reads which version of Open vSwitch serves: a newer one may be installed, and not yet running."""

from __future__ import annotations

import re
from contextlib import suppress

from placewire.agent.drivers.command import run
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.reconcile.effects import EffectError

_NUMBERS = re.compile(r"\b(\d+\.\d+(\.\d+)?)\b")


def open_vswitch_version(remote: str) -> str:
    """The version that the database has: Open vSwitch's start script (ovs-ctl) writes that of the
    installed program there when it starts ovsdb-server, and nobody later. That of the installed
    program where the database names none or does not answer. Raises EffectError where there is
    neither."""
    with suppress(EffectError), connected(remote) as database:
        for version in database.switch.ovs_version:
            if _NUMBERS.search(version):
                return str(version)
    text = run(["ovs-vswitchd", "--version"])
    match = _NUMBERS.search(text)
    if match is None:
        raise EffectError(f"ovs-vswitchd --version says {text.strip()!r}, which names no version")
    return match[1]
