"""Allocated bandwidth as one desired network state per server. Pure; converts; decides nothing.

What each server gets (DESIGN of the network, docs/architecture.md):
  every NIC      a bridge with the NIC as its port, the address on the bridge, a routing table and a
                 source rule per rail, sysctls that keep ARP and reverse paths to their own NIC
  shaped NICs    an HTB root at the NIC's rate; queue 0 for everything else, a queue for
                 acknowledgements, and the job's: one per destination or one in all, by sharing
  destinations   a flow that sets the queue, and where the datapath ignores set_queue a classifier;
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
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster_plan.payload import ACKNOWLEDGEMENT_FRACTION
from placewire.optimizer.cluster_plan.section import PlanNic, PlanServer

_SYSCTLS = (("rp_filter", "2"), ("arp_ignore", "1"), ("arp_announce", "2"))
# The NIC itself must not answer ARP for the address that moved to its bridge: on the userspace
# datapath the kernel sees what the NIC receives as well.
_NIC_SYSCTLS = (("arp_ignore", "1"),)


def compile_network(
    plan: Plan,
    allocation: Allocation,
    capabilities: Mapping[str, Capabilities],
    generations: Mapping[str, int],
) -> dict[str, DesiredState]:
    """One DesiredState per server of the plan.

    capabilities and generations: by server name, of servers that `deliverable.refusals` lets
    through. The digest names the whole decision, so that servers on different decisions can be
    told apart.
    """
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
    """Where NICs carry larger frames than the plan uses: which, and what to write; by MTU."""
    there: dict[int, list[str]] = {}
    for server in plan.cluster.servers:
        found = {nic.name: nic.mtu_bytes for nic in capabilities[server.name].nics}
        for nic in server.nics:
            if (mtu_bytes := found.get(nic.name, 0)) > nic.mtu_bytes:
                there.setdefault(mtu_bytes, []).append(f"{server.name} {nic.name}")
    return tuple(
        f"{', '.join(nics)} could carry larger frames: they have MTU {mtu_bytes}, the plan uses "
        "less; where all of a rail and its switch do, give them `mtu` in the plan"
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
                name=bridge_name(nic.name),
                nic=nic.name,
                datapath=datapath,
                mtu_bytes=nic.mtu_bytes,
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
                # A classifier finds them where set_queue is ignored.
                *([(None, ACKNOWLEDGEMENT_QUEUE)] if capabilities.steering == "set_queue" else []),
            )
        ),
        classifiers=tuple(c for nic in shaped for c in _classifiers(plan, nic, on[nic.rail]))
        if capabilities.steering == "u32"
        else (),
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
    """rest_bits_per_second: what queue 0 is promised."""
    whole = round(nic.rate_bits_per_second)

    def queue(queue_id: int, minimum: int, maximum: int, purpose: str) -> Queue:
        return Queue(
            nic=nic.name,
            queue_id=queue_id,
            min_bits_per_second=minimum,
            max_bits_per_second=maximum,
            burst_bits=burst_bits(maximum, nic.mtu_bytes),
            purpose=purpose,
        )

    short = round(whole * ACKNOWLEDGEMENT_FRACTION)
    queues = [
        queue(DEFAULT_QUEUE, rest_bits_per_second, whole, "everything else"),
        queue(ACKNOWLEDGEMENT_QUEUE, short, whole, "acknowledgements"),
        *(
            queue(
                one.queue_id,
                wire_rate(one.queue.minimum, nic.mtu_bytes),
                wire_rate(one.maximum, nic.mtu_bytes),
                one.purpose,
            )
            for one in job
        ),
    ]
    return sorted(queues, key=lambda q: q.queue_id)


def _destinations(plan: Plan, nic: PlanNic, job: Sequence[NicQueue]) -> list[tuple[str, int]]:
    """(address of the destination on this NIC's rail, its queue)"""
    address = {s.name: n.ip for s in plan.cluster.servers for n in s.nics if n.rail == nic.rail}
    return [(address[name], one.queue_id) for one in job for name in one.queue.destinations]


def _classifiers(plan: Plan, nic: PlanNic, job: Sequence[NicQueue]) -> list[Classifier]:
    short = Classifier(nic=nic.name, destination=None, queue_id=ACKNOWLEDGEMENT_QUEUE)
    pairs = _destinations(plan, nic, job)
    return [short, *(Classifier(nic=nic.name, destination=a, queue_id=q) for a, q in pairs)]


def _table(plan: Plan, nic: PlanNic) -> int:
    return TABLE_BASE + plan.cluster.rails.index(nic.rail)


def _routes(plan: Plan, nic: PlanNic) -> list[Route]:
    def route(destination: str, gateway: str | None) -> Route:
        return Route(
            table=_table(plan, nic),
            destination=destination,
            interface=bridge_name(nic.name),
            source=nic.ip,
            gateway=gateway,
        )

    routes = [route(str(nic.network), None)]
    if nic.gateway is not None:
        routes.append(route("0.0.0.0/0", nic.gateway))
    return routes
