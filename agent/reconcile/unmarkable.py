"""Lists what is Placewire's or is changed by it, but bears no mark: only desired state and ledger
know of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from placewire.agent.contract.state import DesiredState, Ledger
from placewire.agent.reconcile.diff import moved_routes, moved_v6


class Unmarked(NamedTuple):
    """sysctls: names. bridges: names of bridges whose interface may be left in the kernel: a killed
    ovs-vswitchd leaves its own there, and the next one removes none that it did not make. nics:
    those that were taken over, on which queues of ours may be left.

    addresses: (interface, address with its length) of those on bridges that are ours or were a
    NIC's own. routes: those over bridges that were a NIC's own. What else is there is another
    program's. None: nobody knows which are ours, so that none counts as foreign.
    """

    sysctls: Collection[str] = ()
    bridges: Collection[str] = ()
    nics: Collection[str] = ()
    addresses: Collection[tuple[str, str]] | None = None
    routes: Collection[str] | None = None


NOTHING_KNOWN = Unmarked()


def unmarked(desired: DesiredState | None, ledger: Ledger) -> Unmarked:
    """Known from the desired state and the ledger alone."""
    wanted = desired.sysctls if desired else ()
    owed = (sysctl for debt in ledger.owed for sysctl in debt.sysctls)
    taken = (*ledger.nics, *ledger.owed)
    bridges = frozenset(one.bridge for one in taken)
    return Unmarked(
        sysctls=frozenset(sysctl.name for sysctl in (*ledger.sysctls, *wanted, *owed)),
        bridges=bridges,
        nics=frozenset(one.nic for one in taken),
        addresses=frozenset(
            [
                *((a.interface, a.address) for a in ledger.addresses),
                *((name, address) for name in bridges for address in moved_v6(name, ledger)),
            ]
        ),
        routes=frozenset(route for name in bridges for route in moved_routes(name, ledger)),
    )
