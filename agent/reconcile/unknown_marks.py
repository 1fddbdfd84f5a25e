"""Finds what carries Placewire's marks and no state on disk knows. Pure.

The state may be lost, with the disk or by somebody's hand. What it had taken over can then not be
told from the disk; the marks of the bridges are the second witness. Nothing is changed on such a
server before an operator has had it taken back from the marks: a new plan would take the addresses
of its NICs for gone, and an undo would leave the NICs without them.
"""

from __future__ import annotations

from collections.abc import Collection
from shlex import quote

from placewire.agent.contract.command import AGENT
from placewire.agent.contract.entries import Sysctl
from placewire.agent.contract.state import (
    LeaseState,
    Ledger,
    ObservedState,
    Refusal,
    TakenOver,
    refuse,
)
from placewire.agent.reconcile.command_words import interfaces_of, is_a_route, is_an_address
from placewire.agent.reconcile.diff import over_bridge

TAKE_BACK = (
    f"stop the agent and run `{AGENT} restore --from-marks`, which gives each NIC back what its "
    "bridge's mark says that it held"
)
_AGAIN = "then run the command again"
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
            addresses=(
                *given,
                *(a.address for a in observed.moved_addresses if a.interface == bridge.name),
            ),
            given=given,
            made_promiscuous=bridge.datapath == "netdev",
            routes=tuple(
                over_bridge(route, bridge.name, bridge.nic)
                for route in observed.bridge_routes
                if f" dev {bridge.name} " in f" {route} "
            ),
        )
        for bridge in observed.bridges
        if bridge.nic
        for given in [tuple(a.address for a in observed.addresses if a.interface == bridge.name)]
    )


def refusals_of_marks(
    observed: ObservedState, ledger: Ledger, protected: Collection[str]
) -> tuple[Refusal, ...]:
    """Why marks are not obeyed. ledger: what they tell (ledger_of_marks). Whoever may write to Open
    vSwitch can write a mark: it is believed only about the NIC that is its bridge's port, only
    where that NIC is not protected, and only in words that `ip` prints. Names of a mark are quoted:
    operators paste commands."""
    nics = {bridge.name: bridge.nic for bridge in observed.bridges}
    return (
        *(
            refuse(
                f"bridge {taken.bridge}",
                f"its marks say that it took over {taken.nic}, which is protected in this agent's "
                "configuration",
                "look who made that bridge, and remove it (ovs-vsctl del-br "
                f"{quote(taken.bridge)}) or take the NIC off the protected list; {_AGAIN}",
            )
            for taken in ledger.nics
            if taken.nic in protected
        ),
        *(
            refuse(
                f"bridge {taken.bridge}",
                f"its mark says that it took over {taken.nic}, which is no port of this bridge",
                f"make the NIC its port if that is true (ovs-vsctl add-port {quote(taken.bridge)} "
                f"{quote(taken.nic)} -- set port {quote(taken.nic)} "
                f"external_ids:placewire=restored), or {_forget(taken)}; {_AGAIN}",
            )
            for taken in observed.held
            if taken.nic not in protected and nics.get(taken.bridge) != taken.nic
        ),
        *(
            refuse(
                f"bridge {taken.bridge}",
                f"its mark says that {taken.nic} held the route {route!r}, which is not through it",
                f"{_forget(taken)}; {_AGAIN}",
            )
            for taken in observed.held
            for route in taken.routes
            if interfaces_of(route) != {taken.nic}
        ),
        *(
            refuse(
                f"bridge {taken.bridge}",
                f"its mark says that {taken.nic} held {text!r}, which has words that `ip` does not "
                "print for a NIC",
                f"{_forget(taken)}; {_AGAIN}",
            )
            for taken in observed.held
            for text in (
                *(route for route in taken.routes if not is_a_route(route)),
                *(address for address in taken.addresses if not is_an_address(address)),
            )
        ),
    )


def _forget(mark: TakenOver) -> str:
    return (
        f"remove the mark (ovs-vsctl remove bridge {quote(mark.bridge)} external_ids "
        "placewire-held), so that the NIC that is the bridge's port gets what stands on the bridge"
    )
