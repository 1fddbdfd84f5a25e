"""Finds reasons why a plan that names a NIC would be refused. Pure.

Each NIC is put to the agent's own checks, in a plan that takes it over with the addresses that it
has, so that the findings are those of a preview.
"""

from __future__ import annotations

from collections.abc import Iterator

from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.entries import Address, Bridge, bridge_name
from placewire.agent.contract.state import DesiredState, Ledger, NicFacts, Refusal
from placewire.agent.doctor.facts import Facts
from placewire.agent.reconcile.interface_rules import bridges_over
from placewire.agent.reconcile.refusals_addresses import address_refusals
from placewire.agent.reconcile.refusals_held import named_refusals
from placewire.agent.reconcile.refusals_nics import bridge_refusals


def nic_findings(facts: Facts) -> Iterator[Finding]:
    ours = {bridge.nic for bridge in facts.observed.bridges}
    for nic in facts.candidates:
        if nic.name not in ours:
            yield from _refused(nic, facts)
    yield from _management(facts)


def _refused(nic: NicFacts, facts: Facts) -> Iterator[Finding]:
    name, datapath = bridge_name(nic.name), facts.switch.datapath
    addresses = (Address(interface=name, address=a) for a in nic.addresses if ":" not in a)
    wanted = DesiredState(
        server=facts.server, plan_name="", plan_digest="", generation=0,
        take_over=(nic.name,),
        bridges=(Bridge(name=name, nic=nic.name, datapath=datapath, mtu_bytes=nic.mtu_bytes),),
        addresses=tuple(addresses),
    )  # fmt: skip
    found = (
        *bridge_refusals(wanted, facts.observed, datapath, facts.protected, facts.own.taken_over),
        *_named(nic, facts),
        *address_refusals(wanted, facts.observed, Ledger(), facts.own.way_to_controller),
    )
    # Containers have such ports by the dozen; nobody means to plan with them.
    of_a_container = nic.driver == "veth" and nic.bridge is not None
    for refusal in found:
        yield Finding(
            severity="note" if of_a_container else "warning",
            what=refusal.what, where=refusal.where,
            why="a plan that uses this NIC is refused", remedy=refusal.remedy,
        )  # fmt: skip


def _named(nic: NicFacts, facts: Facts) -> Iterator[Refusal]:
    """As a plan is refused that has this NIC beside those that are taken over."""
    if nic.name not in facts.own.taken_over:
        names = (*facts.own.taken_over, nic.name)
        over = bridges_over({name: bridge_name(name) for name in names}, facts.observed)
        yield from named_refusals(nic, over, facts.observed)


def _management(facts: Facts) -> Iterator[Finding]:
    ways = set(facts.own.way_to_controller)
    # Without an IPv4 address the way is one by IPv6.
    if facts.own.controller_url and not ways and not facts.own.controller_interfaces:
        yield Finding(
            severity="warning", what=f"there is no route to {facts.own.controller_url}",
            where="controller", why="the agent must reach it", remedy="ip route get ADDRESS",
        )  # fmt: skip
    for nic in facts.observed.nics:
        carried = ways & {address.split("/")[0] for address in nic.addresses}
        leaves = nic.name in facts.own.controller_interfaces
        if (carried or leaves) and nic.name not in facts.protected:
            what = f"carries {carried.pop()}, the way" if carried else "is the way"
            yield Finding(
                severity="note", what=f"{what} to the controller",
                where=f"NIC {nic.name}",
                why="it is never taken over; `protected` holds also while there is no route",
                remedy=f"add {nic.name} to `protected` in the agent's configuration",
            )  # fmt: skip
