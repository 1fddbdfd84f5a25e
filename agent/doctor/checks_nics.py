"""Findings about NICs: what would have a plan refused that names one as it is. Pure.

The agent's own refusals are asked, about a plan that takes the NIC over with the addresses it has,
so that this says what a preview would say.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface
from itertools import combinations

from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.entries import Address, Bridge, bridge_name
from placewire.agent.contract.state import DesiredState, NicFacts
from placewire.agent.doctor.facts import Facts
from placewire.agent.reconcile.refusals_nics import address_refusals, bridge_refusals


def nic_findings(facts: Facts) -> Iterator[Finding]:
    ours = {bridge.nic for bridge in facts.observed.bridges}
    for nic in facts.candidates:
        if nic.name not in ours:
            yield from _refused(nic, facts)
    yield from _same_subnet(facts)
    yield from _management(facts)


def _refused(nic: NicFacts, facts: Facts) -> Iterator[Finding]:
    bridge = bridge_name(nic.name)
    wanted = DesiredState(
        server=facts.server, plan_name="", plan_digest="", generation=0,
        take_over=(nic.name,),
        bridges=(
            Bridge(
                name=bridge, nic=nic.name, datapath=facts.switch.datapath, mtu_bytes=nic.mtu_bytes
            ),
        ),
        addresses=tuple(
            Address(interface=bridge, address=a) for a in nic.addresses if ":" not in a
        ),
    )  # fmt: skip
    datapath, taken = facts.switch.datapath, facts.own.taken_over
    found = (
        *bridge_refusals(wanted, facts.observed, datapath, facts.protected, taken),
        *address_refusals(wanted, facts.observed, facts.protected),
    )
    # Containers have such ports by the dozen; nobody means to plan with them.
    of_a_container = nic.driver == "veth" and nic.bridge is not None
    for refusal in found:
        yield Finding(
            severity="note" if of_a_container else "warning",
            what=refusal.what, where=refusal.where,
            why="a plan that uses this NIC is refused", remedy=refusal.remedy,
        )  # fmt: skip


def _same_subnet(facts: Facts) -> Iterator[Finding]:
    held = [
        (nic.name, IPv4Interface(address))
        for nic in facts.candidates
        for address in nic.addresses
        if ":" not in address
    ]
    for (one, first), (other, second) in combinations(held, 2):
        if one != other and first.network.overlaps(second.network):
            yield Finding(
                severity="warning", what=f"{first} overlaps with {second} of {other}",
                where=f"NIC {one}",
                why="traffic is led to a rail by its destination: one subnet per rail",
                remedy=f"give {one} or {other} an address in a subnet of its own",
            )  # fmt: skip


def _management(facts: Facts) -> Iterator[Finding]:
    ways = set(facts.own.way_to_controller)
    if facts.own.controller_url and not ways:
        yield Finding(
            severity="warning", what=f"there is no route to {facts.own.controller_url}",
            where="controller", why="the agent dials it", remedy="ip route get ADDRESS",
        )  # fmt: skip
    for nic in facts.observed.nics:
        carried = ways & {address.split("/")[0] for address in nic.addresses}
        if carried and nic.name not in facts.protected:
            yield Finding(
                severity="note", what=f"carries {carried.pop()}, the way to the controller",
                where=f"NIC {nic.name}",
                why="it is never taken over; `protected` says so also while there is no way",
                remedy=f"add {nic.name} to `protected` in the agent's configuration",
            )  # fmt: skip
