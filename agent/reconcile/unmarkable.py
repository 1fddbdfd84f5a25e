"""What of ours carries no mark that says so, and is known from what was asked and noted. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from placewire.agent.contract.state import DesiredState, Ledger


class Unmarked(NamedTuple):
    """sysctls: names. bridges: names of those of which ovs-vswitchd may have left the interface
    when it was killed: it removes none that it did not make itself."""

    sysctls: Collection[str] = ()
    bridges: Collection[str] = ()


def unmarked(desired: DesiredState | None, ledger: Ledger) -> Unmarked:
    names = {sysctl.name for sysctl in ledger.sysctls}
    return Unmarked(
        sysctls=frozenset(names | {s.name for s in desired.sysctls} if desired else names),
        bridges=frozenset(taken.bridge for taken in ledger.nics),
    )
