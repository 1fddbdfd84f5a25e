"""Lists what Placewire changes but cannot mark: sysctls, and interfaces left by Open vSwitch."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from placewire.agent.contract.state import DesiredState, Ledger


class Unmarked(NamedTuple):
    """sysctls: names. bridges: names of bridges whose interface may be left in the kernel: a killed
    ovs-vswitchd leaves its own there, and the next one removes none that it did not make."""

    sysctls: Collection[str] = ()
    bridges: Collection[str] = ()


def unmarked(desired: DesiredState | None, ledger: Ledger) -> Unmarked:
    """Known from the desired state and the ledger alone."""
    wanted = desired.sysctls if desired else ()
    owed = (sysctl for debt in ledger.owed for sysctl in debt.sysctls)
    return Unmarked(
        sysctls=frozenset(sysctl.name for sysctl in (*ledger.sysctls, *wanted, *owed)),
        bridges=frozenset(taken.bridge for taken in (*ledger.nics, *ledger.owed)),
    )
