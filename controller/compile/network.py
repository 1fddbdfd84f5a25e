"""A placement as one desired network state per server. Pure; converts units; decides nothing.

What each server gets (DESIGN of the network, docs/architecture.md):
  every NIC      a bridge with the NIC as its port, the address on the bridge, a routing table and a
                 source rule per rail, sysctls that keep ARP and reverse paths to their own NIC
  shaped NICs    an HTB root at the NIC's rate; queue 0 for everything else, a queue for
                 acknowledgements, and one queue per destination with the pair's rate
  destinations   a flow that sets the queue, and where the datapath ignores set_queue a classifier
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from agent.contract.entries import (
    ACKNOWLEDGEMENT_QUEUE,
    BRIDGE_PREFIX,
    DEFAULT_QUEUE,
    FIRST_PAIR_QUEUE,
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
)
from agent.contract.messages import Capabilities
from agent.contract.state import DesiredState
from controller.compile.units import (
    ACKNOWLEDGEMENT_FRACTION,
    DEFAULT_FRACTION,
    burst_bits,
    wire_rate,
)
from controller.plan import Plan, PlanNic, PlanServer
from optimizer.placement import Placement

_LONGEST_NAME = 15
_DIGEST_CHARACTERS = 5
_SYSCTLS = (("rp_filter", "2"), ("arp_ignore", "1"), ("arp_announce", "2"))
# The NIC itself must not answer ARP for the address that moved to its bridge: on the userspace
# datapath the kernel sees what the NIC receives as well.
_NIC_SYSCTLS = (("arp_ignore", "1"),)


def compile_network(
    plan: Plan,
    placement: Placement,
    capabilities: Mapping[str, Capabilities],
    generations: Mapping[str, int],
) -> dict[str, DesiredState]:
    """One DesiredState per server of the plan.

    capabilities and generations: by server name. The digest names the whole decision, so that
    servers on different decisions can be told apart.
    """
    states = {
        server.name: _server_state(
            plan, placement, server, capabilities[server.name], generations[server.name]
        )
        for server in plan.cluster.servers
    }
    contents = "".join(state.content_digest for state in states.values())
    digest = hashlib.sha256(contents.encode()).hexdigest()
    return {
        name: state.model_copy(update={"plan_digest": digest}) for name, state in states.items()
    }


def bridge_name(nic: PlanNic) -> str:
    """At most 15 characters, the kernel's limit: a longer one ends in a digest of the NIC's name
    instead of its rest."""
    whole = BRIDGE_PREFIX + nic.name
    if len(whole) <= _LONGEST_NAME:
        return whole
    digest = hashlib.sha256(nic.name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{whole[: _LONGEST_NAME - 1 - len(digest)]}-{digest}"


def pair_queue(plan: Plan, destination: str) -> int:
    """The queue that a destination has on every NIC: stable while the plan's servers are."""
    names = [server.name for server in plan.cluster.servers]
    return FIRST_PAIR_QUEUE + names.index(destination)


def _server_state(
    plan: Plan,
    placement: Placement,
    server: PlanServer,
    capabilities: Capabilities,
    generation: int,
) -> DesiredState:
    nics = server.nics
    rates = _rates_from(placement, server.name)
    shaped = [nic for nic in nics if any(rail == nic.rail for rail, _ in rates)]
    return DesiredState(
        server=server.name,
        plan_name=plan.name,
        plan_digest="",
        generation=generation,
        take_over=tuple(nic.name for nic in nics if nic.take_over),
        bridges=tuple(
            Bridge(name=bridge_name(nic), nic=nic.name, datapath=capabilities.datapath)
            for nic in nics
        ),
        addresses=tuple(Address(interface=bridge_name(nic), address=nic.address) for nic in nics),
        sysctls=tuple(
            Sysctl(name=f"net.ipv4.conf.{interface}.{key}", value=value)
            for nic in nics
            for interface, settings in ((bridge_name(nic), _SYSCTLS), (nic.name, _NIC_SYSCTLS))
            for key, value in settings
        ),
        shapers=tuple(
            Shaper(nic=nic.name, max_bits_per_second=round(nic.rate_bits_per_second))
            for nic in shaped
        ),
        queues=tuple(queue for nic in shaped for queue in _queues(plan, nic, rates)),
        flows=tuple(
            Flow(bridge=bridge_name(nic), destination=address, queue_id=queue)
            for nic in shaped
            for address, queue in _destinations(plan, nic, rates)
        ),
        classifiers=()
        if capabilities.set_queue_honoured
        else tuple(c for nic in shaped for c in _classifiers(plan, nic, rates)),
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


def _rates_from(placement: Placement, server: str) -> dict[tuple[str, str], float]:
    """(rail, destination server) -> payload rate, for what this server sends."""
    return {
        (rail, destination): rate
        for source, destination, rail, rate in placement.rates_bits_per_second
        if source == server and rate > 0
    }


def _queues(plan: Plan, nic: PlanNic, rates: Mapping[tuple[str, str], float]) -> list[Queue]:
    whole = round(nic.rate_bits_per_second)

    def queue(queue_id: int, minimum: int, maximum: int, purpose: str) -> Queue:
        return Queue(
            nic=nic.name,
            queue_id=queue_id,
            min_bits_per_second=minimum,
            max_bits_per_second=maximum,
            burst_bits=burst_bits(maximum),
            purpose=purpose,
        )

    short = round(whole * ACKNOWLEDGEMENT_FRACTION)
    queues = [
        queue(DEFAULT_QUEUE, round(whole * DEFAULT_FRACTION), whole, "everything else"),
        queue(ACKNOWLEDGEMENT_QUEUE, short, whole, "acknowledgements"),
    ]
    for (rail, destination), rate in rates.items():
        if rail == nic.rail:
            wire = wire_rate(rate)
            queues.append(queue(pair_queue(plan, destination), wire, wire, f"to {destination}"))
    return sorted(queues, key=lambda q: q.queue_id)


def _destinations(
    plan: Plan, nic: PlanNic, rates: Mapping[tuple[str, str], float]
) -> list[tuple[str, int]]:
    """(address of the destination on this NIC's rail, its queue)"""
    address = {s.name: n.ip for s in plan.cluster.servers for n in s.nics if n.rail == nic.rail}
    return [
        (address[destination], pair_queue(plan, destination))
        for rail, destination in rates
        if rail == nic.rail
    ]


def _classifiers(
    plan: Plan, nic: PlanNic, rates: Mapping[tuple[str, str], float]
) -> list[Classifier]:
    short = Classifier(nic=nic.name, destination=None, queue_id=ACKNOWLEDGEMENT_QUEUE)
    pairs = _destinations(plan, nic, rates)
    return [short, *(Classifier(nic=nic.name, destination=a, queue_id=q) for a, q in pairs)]


def _table(plan: Plan, nic: PlanNic) -> int:
    return TABLE_BASE + plan.cluster.rails.index(nic.rail)


def _routes(plan: Plan, nic: PlanNic) -> list[Route]:
    def route(destination: str, gateway: str | None) -> Route:
        return Route(
            table=_table(plan, nic),
            destination=destination,
            interface=bridge_name(nic),
            source=nic.ip,
            gateway=gateway,
        )

    routes = [route(str(nic.network), None)]
    if nic.gateway is not None:
        routes.append(route("0.0.0.0/0", nic.gateway))
    return routes
