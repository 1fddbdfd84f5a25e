"""Reads which version of Open vSwitch serves: a newer one may be installed, and not yet running."""

from __future__ import annotations

import re
from contextlib import suppress

from placewire.agent.drivers.command import run
from placewire.agent.drivers.ovsdb_connection import connected
from placewire.agent.reconcile.effects import EffectError


def open_vswitch_version(remote: str) -> str:
    """The version that the database has, where Open vSwitch's start script writes it; that of the
    installed program where the database says none or does not answer. Raises EffectError where
    there is neither."""
    with suppress(EffectError), connected(remote) as database:
        for version in database.switch.ovs_version:
            return str(version)
    text = run(["ovs-vswitchd", "--version"])
    match = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", text)
    if match is None:
        raise EffectError(f"ovs-vswitchd --version says {text.strip()!r}, which names no version")
    return match[1]
