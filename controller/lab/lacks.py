"""Finds what a plan asks for that its lab, made from an earlier form of the plan, lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from placewire.controller.agent_advice import make_anew
from placewire.controller.errors import PlacewireError
from placewire.controller.few_names import few_names
from placewire.controller.lab.record import LabRecord, ServerRecord
from placewire.controller.plan.plan import Plan
from placewire.optimizer.cluster_plan.section import PlanServer
from placewire.optimizer.quantities import format_bits_per_second


def refuse_what_a_lab_lacks(plan: Plan, lab: LabRecord) -> None:
    """Raises PlacewireError, for example where a line is slower than the plan says: no promise of
    that rate could be kept."""
    made = {server.name: server for server in lab.servers}
    lacks = [
        one
        for server in plan.cluster.servers
        for one in (
            _lacks(server, made[server.name]) if server.name in made else [f"no {server.name}"]
        )
    ]
    if lacks:
        raise PlacewireError(
            f"the lab {lab.name!r} was made from another form of this plan; it has "
            f"{few_names(lacks)}",
            where="lab",
            remedy=f"{make_anew(lab.name)}; or correct the plan's cluster",
        )


def _lacks(wanted: PlanServer, made: ServerRecord) -> Iterator[str]:
    if made.management_address != wanted.management:
        yield f"{wanted.name} at {made.management_address} (the plan: {wanted.management})"
    lines = {nic.name: nic for nic in made.nics}
    for nic in wanted.nics if lines else ():
        where = f"{wanted.name} {nic.name}"
        if (line := lines.get(nic.name)) is None:
            yield f"no {where}"
        elif line.rail not in (None, nic.rail):
            yield f"{where} on rail {line.rail} (the plan: {nic.rail})"
        elif line.address not in (None, nic.address):
            yield f"{where} with {line.address} (the plan: {nic.address})"
        elif line.bits_per_second < nic.rate_bits_per_second:
            has = format_bits_per_second(line.bits_per_second)
            yield f"{where} at {has} (the plan: {format_bits_per_second(nic.rate_bits_per_second)})"
        elif line.mtu_bytes < nic.mtu_bytes:
            yield f"{where} with an MTU of {line.mtu_bytes} (the plan: {nic.mtu_bytes})"
