"""Finds what carries Placewire's marks and no state on disk knows. Pure.

The state may be lost, with the disk or by somebody's hand. What it had taken over can then not be
told from the disk; the marks of the bridges are the second witness. Nothing is changed on such a
server before an operator has had it taken back from the marks: a new plan would take the addresses
of its NICs for gone, and an undo would leave the NICs without them.
"""

from __future__ import annotations

from placewire.agent.contract.entries import Sysctl
from placewire.agent.contract.state import LeaseState, ObservedState, Refusal, TakenOver, refuse
from placewire.agent.reconcile.diff import over_bridge

TAKE_BACK = (
    "stop the agent and run `agent restore --from-marks`, which gives each NIC back what its "
    "bridge's mark says that it held"
)
_MOST_NAMED = 4


def unknown_marks(lease: LeaseState, observed: ObservedState) -> tuple[str, ...]:
    """The marked entries, named, where the lease on disk says that nothing is in force."""
    if not lease.is_idle:
        return ()
    entries = (entry for entry in observed.entries() if not isinstance(entry, Sysctl))
    return tuple(f"{entry.collection} {entry.key}" for entry in entries)


def refusal_of_unknown_marks(
    server: str, lease: LeaseState, observed: ObservedState
) -> tuple[Refusal, ...]:
    """Why nothing may be changed there now; empty where all marks are known."""
    found = unknown_marks(lease, observed)
    if not found:
        return ()
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    named = ", ".join(found[:_MOST_NAMED]) + more
    return (
        refuse(
            f"server {server}",
            f"carries Placewire's marks, which no state on this server's disk knows: {named}",
            TAKE_BACK,
        ),
    )


def held_on_bridges(observed: ObservedState) -> tuple[TakenOver, ...]:
    """What stands on the bridges' interfaces, as held by their NICs: all that is known of a bridge
    whose mark does not say what its NIC held, as an agent of version 1 made it. observed: read with
    NOTHING_KNOWN."""
    return tuple(
        TakenOver(
            nic=bridge.nic,
            bridge=bridge.name,
            addresses=on_it,
            given=on_it,
            routes=tuple(
                over_bridge(route, bridge.name, bridge.nic)
                for route in observed.bridge_routes
                if f" dev {bridge.name} " in f" {route} "
            ),
        )
        for bridge in observed.bridges
        if bridge.nic
        for on_it in [tuple(a.address for a in observed.addresses if a.interface == bridge.name)]
    )
