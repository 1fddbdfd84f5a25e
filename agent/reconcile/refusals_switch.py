"""Refusals of a version of Open vSwitch, and what is known of versions. Pure.

The agent's flows need 2.12, the first release with check_pkt_larger (release notes of Open
vSwitch). What it relies on beyond that, such as what a restart leaves of queues, and which errors
the database shows, was only ever tried with OLDEST and newer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from placewire.agent.contract.state import Refusal, refuse

OLDEST = (3, 1)
# Earlier ones count rates in 32-bit bytes per second.
COUNTS_ALL_RATES = (3, 2)
LARGEST_32_BIT_RATE = 34_000_000_000
# agent/drivers/open_vswitch_version.py
SOURCE = "ovs_version in its database, or else ovs-vswitchd --version"
WHY_NOT_OLDER = "what the agent relies on was never tried with an older one"
REMEDY = (
    f"install Open vSwitch {OLDEST[0]}.{OLDEST[1]} or newer, restart it (systemctl restart "
    "openvswitch-switch), then the agent (systemctl restart placewire-agent). Where a newer one "
    "runs already: `ovs-vsctl get Open_vSwitch . ovs_version` shows what the database has, and "
    "Open vSwitch's own start script alone writes it"
)


def version_numbers(version: str) -> tuple[int, ...]:
    """`3.1.0` -> (3, 1, 0); what a distribution adds (`2.17.9-1ubuntu2`) decides nothing."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("-")[0]))


def too_old(version: tuple[int, ...]) -> str:
    """A sentence's end about a version that is refused; empty for one that is not."""
    if version >= OLDEST:
        return ""
    return f"version {shown(version)} ({SOURCE}) is older than {shown(OLDEST)}"


def switch_refusals(version: tuple[int, ...]) -> Iterator[Refusal]:
    if what := too_old(version):
        yield refuse("Open vSwitch", f"{what}: {WHY_NOT_OLDER}", REMEDY)


def shown(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
