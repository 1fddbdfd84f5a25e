"""Compiles allocated bandwidth to one desired network state per server. Pure; decides nothing.

What each server gets (docs/design/server-network.md):
  every NIC      a bridge with the NIC as its port, the address on the bridge, a routing table and a
                 source rule per rail, sysctls that keep ARP and reverse paths on their own NIC
  shaped NICs    an HTB root at the NIC's rate; queue 0 for everything else, a queue for
                 acknowledgements, and queues for the job: one per destination, or one in all under
                 `job` sharing
  destinations   a flow that sets the queue, and a classifier where the datapath ignores set_queue;
                 the same for acknowledgements and other short packets
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.entries import (
    ACKNOWLEDGEMENT_QUEUE,
    DEFAULT_QUEUE,
    RULE_PRIORITY_BASE,
    TABLE_BASE,
    Address,
    Bridge,
    Classifier,
    Flow,
    Queue,
    Route,
    Rule,
    Shaper,
    Sysctl,
    bridge_name,
)
from placewire.agent.contract.state import DesiredState
from placewire.controller.compile.queues import NicQueue, everything_else, job_queues
from placewire.controller.compile.units import burst_bits, wire_rate
from placewire.controller.few_names import few_names
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster_plan.payload import ACKNOWLEDGEMENT_FRACTION
from placewire.optimizer.cluster_plan.section import PlanNic, PlanServer

_SYSCTLS = (("rp_filter", "2"), ("arp_ignore", "1"), ("arp_announce", "2"))
# The NIC itself must not answer ARP for the address that moved to its bridge: with the userspace
# datapath, the kernel too sees what the NIC receives.
_NIC_SYSCTLS = (("arp_ignore", "1"),)


def compile_network(
    plan: Plan,
    allocation: Allocation,
    capabilities: Mapping[str, Capabilities],
    generations: Mapping[str, int],
) -> dict[str, DesiredState]:
    """By server of the plan. capabilities and generations: by server; `deliverable.refusals` must
    have been empty. plan_digest is the same in all states and names the whole decision, so that
    servers on different decisions can be told apart."""
    queues = job_queues(plan, allocation)
    states = {
        server.name: _server_state(
            plan,
            allocation,
            server,
            [one for one in queues if one.queue.source == server.name],
            capabilities[server.name],
            generations[server.name],
        )
        for server in plan.cluster.servers
    }
    contents = "".join(state.content_digest for state in states.values())
    digest = hashlib.sha256(contents.encode()).hexdigest()
    return {
        name: state.model_copy(update={"plan_digest": digest}) for name, state in states.items()
    }


def larger_frames(plan: Plan, capabilities: Mapping[str, Capabilities]) -> tuple[str, ...]:
    """A hint per MTU: which NICs carry larger frames than the plan uses, and how to use them."""
    there: dict[int, list[str]] = {}
    for server in plan.cluster.servers:
        found = {nic.name: nic.mtu_bytes for nic in capabilities[server.name].nics}
        for nic in server.nics:
            if (mtu_bytes := found.get(nic.name, 0)) > nic.mtu_bytes:
                there.setdefault(mtu_bytes, []).append(f"{server.name} {nic.name}")
    return tuple(
        f"{few_names(nics)} could carry larger frames: they have MTU {mtu_bytes}, the plan uses "
        "less; where all NICs of a rail and its switch can, give the NICs `mtu` in the plan"
        for mtu_bytes, nics in there.items()
    )


def _server_state(
    plan: Plan,
    allocation: Allocation,
    server: PlanServer,
    job: Sequence[NicQueue],
    capabilities: Capabilities,
    generation: int,
) -> DesiredState:
    nics, datapath = server.nics, capabilities.datapath
    assert datapath != "none"
    on = {nic.rail: [one for one in job if one.queue.rail == nic.rail] for nic in nics}
    shaped = [nic for nic in nics if on[nic.rail]]
    return DesiredState(
        server=server.name,
        plan_name=plan.name,
        plan_digest="",
        generation=generation,
        take_over=tuple(nic.name for nic in nics if nic.take_over),
        drift=plan.network.drift,
        bridges=tuple(
            Bridge(
                name=bridge_name(nic.name), nic=nic.name, datapath=datapath, mtu_bytes=nic.mtu_bytes
            )
            for nic in nics
        ),
        addresses=tuple(
            Address(interface=bridge_name(nic.name), address=nic.address) for nic in nics
        ),
        sysctls=tuple(
            Sysctl(name=f"net.ipv4.conf.{interface}.{key}", value=value)
            for nic in nics
            for interface, settings in ((bridge_name(nic.name), _SYSCTLS), (nic.name, _NIC_SYSCTLS))
            for key, value in settings
        ),
        shapers=tuple(
            Shaper(nic=nic.name, max_bits_per_second=round(nic.rate_bits_per_second))
            for nic in shaped
        ),
        queues=tuple(
            queue
            for nic in shaped
            for queue in _queues(nic, on[nic.rail], everything_else(allocation, server.name, nic))
        ),
        flows=tuple(
            Flow(bridge=bridge_name(nic.name), destination=address, queue_id=queue)
            for nic in shaped
            for address, queue in (
                *_destinations(plan, nic, on[nic.rail]),
                # Where the datapath ignores set_queue, a classifier does this instead.
                *([(None, ACKNOWLEDGEMENT_QUEUE)] if capabilities.steering == "set_queue" else []),
            )
        ),
        classifiers=tuple(
            Classifier(nic=nic.name, destination=address, queue_id=queue)
            for nic in shaped
            if capabilities.steering == "u32"
            for address, queue in (
                (None, ACKNOWLEDGEMENT_QUEUE),
                *_destinations(plan, nic, on[nic.rail]),
            )
        ),
        routes=tuple(route for nic in nics for route in _routes(plan, nic)),
        rules=tuple(
            Rule(
                priority=RULE_PRIORITY_BASE + plan.cluster.rails.index(nic.rail),
                source=f"{nic.ip}/32",
                table=_table(plan, nic),
            )
            for nic in nics
        ),
    )


def _queues(nic: PlanNic, job: Sequence[NicQueue], rest_bits_per_second: int) -> list[Queue]:
    """rest_bits_per_second: what queue 0 is promised, on the wire."""
    whole, mtu = round(nic.rate_bits_per_second), nic.mtu_bytes
    rows = [
        (DEFAULT_QUEUE, rest_bits_per_second, whole, "everything else"),
        (ACKNOWLEDGEMENT_QUEUE, round(whole * ACKNOWLEDGEMENT_FRACTION), whole, "acknowledgements"),
    ]
    for one in job:
        least, most = wire_rate(one.queue.minimum, mtu), wire_rate(one.maximum, mtu)
        rows.append((one.queue_id, least, most, one.purpose))
    return [
        Queue(
            nic=nic.name,
            queue_id=queue_id,
            min_bits_per_second=least,
            max_bits_per_second=most,
            burst_bits=burst_bits(most, mtu),
            purpose=purpose,
        )
        for queue_id, least, most, purpose in sorted(rows)
    ]


def _destinations(plan: Plan, nic: PlanNic, job: Sequence[NicQueue]) -> list[tuple[str, int]]:
    """(the address of a destination on this NIC's rail, the queue for it)"""
    address = {s.name: n.ip for s in plan.cluster.servers for n in s.nics if n.rail == nic.rail}
    return [(address[name], one.queue_id) for one in job for name in one.queue.destinations]


def _table(plan: Plan, nic: PlanNic) -> int:
    return TABLE_BASE + plan.cluster.rails.index(nic.rail)


def _routes(plan: Plan, nic: PlanNic) -> list[Route]:
    ways: list[tuple[str, str | None]] = [(str(nic.network), None)]
    if nic.gateway is not None:
        ways.append(("0.0.0.0/0", nic.gateway))
    table, interface = _table(plan, nic), bridge_name(nic.name)
    return [
        Route(table=table, destination=to, interface=interface, source=nic.ip, gateway=gateway)
        for to, gateway in ways
    ]
