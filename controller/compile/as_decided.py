"""The plan as it was when a decision was made: of its NICs, what the decision's states record."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.agent.contract.entries import bridge_name
from placewire.agent.contract.state import DesiredState
from placewire.controller.errors import UsageError
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster_plan.section import PlanNic

_REMEDY = (
    "`--no-measurement` leaves the rates out; or give the plan as it was when that was decided"
)


def plan_as_decided(plan: Plan, allocation: Allocation, states: Mapping[str, DesiredState]) -> Plan:
    """The plan with the servers of the allocation, and with the addresses, MTUs and rates of the
    states. What the states do not record is as in the plan, such as which rail a NIC is on.

    Raises UsageError where the plan no longer has a server, or a NIC on a rail, of the decision.
    """
    planned = {server.name: server for server in plan.cluster.servers}
    servers = []
    for server in allocation.cluster.servers:
        if server.name not in planned:
            raise _does_not_fit(f"server {server.name}", "this server")
        state, now = states.get(server.name), planned[server.name]
        nics = now.nics if state is None else _nics(now.nics, state)
        for rail in (nic.rail for nic in server.nics):
            if rail not in {nic.rail for nic in nics}:
                raise _does_not_fit(f"server {server.name}", f"rail {rail} of this server")
        servers.append(now.model_copy(update={"nics": nics}))
    cluster = plan.cluster.model_copy(update={"servers": tuple(servers)})
    return plan.model_copy(update={"cluster": cluster})


def _nics(planned: tuple[PlanNic, ...], state: DesiredState) -> tuple[PlanNic, ...]:
    """Those of the plan that the state has, as they are there."""
    mtus = {bridge.nic: bridge.mtu_bytes for bridge in state.bridges}
    addresses = {one.interface: one.address for one in state.addresses}
    rates = {shaper.nic: float(shaper.max_bits_per_second) for shaper in state.shapers}
    return tuple(
        nic.model_copy(
            update={
                "mtu_bytes": mtus[nic.name],
                "address": addresses.get(bridge_name(nic.name), nic.address),
                "rate_bits_per_second": rates.get(nic.name, nic.rate_bits_per_second),
            }
        )
        for nic in planned
        if nic.name in mtus
    )


def _does_not_fit(where: str, what: str) -> UsageError:
    return UsageError(
        f"rates were promised for {what}, and the plan has no NIC for them any more; nothing was "
        "changed",
        where=where,
        remedy=_REMEDY,
    )
