"""Judges from servers' capabilities whether they can deliver what a plan promises. Pure.

These are the judgements that need the plan or several servers. What a server can judge from its own
state alone (frames, link speeds, rates that Open vSwitch cannot count, a kernel without HTB), its
agent refuses when it is asked for a preview (agent/reconcile).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placewire.agent.contract.capabilities import SOFTWARE_HTB_BITS_PER_SECOND, Capabilities
from placewire.agent.contract.entries import LEAST_CLASS_BITS_PER_SECOND
from placewire.agent.contract.state import DesiredState, NicFacts, Refusal
from placewire.controller.compile.units import wire_rate
from placewire.controller.few_names import few_names
from placewire.controller.plan.plan import Plan
from placewire.optimizer.allocation import Allocation
from placewire.optimizer.cluster_plan.checks import nics_of
from placewire.optimizer.cluster_plan.documents import Mistake
from placewire.optimizer.network.sharings import SHARINGS

_GIGABIT = 1e9
_ALIKE = "give weights that are less unlike, leave the pair out, or choose `network.sharing: job`"
_FASTER = "plan a faster NIC, fewer servers on the rail, or a larger `network.floor`"


def refusals(able: Mapping[str, Capabilities]) -> dict[str, Refusal]:
    """By server, why no rate can be promised there; empty where the plan can be compiled."""
    return {
        server: refusal
        for server, capabilities in able.items()
        if (refusal := _steering(capabilities)) is not None
    }


def rate_mistakes(plan: Plan, allocation: Allocation) -> tuple[Mistake, ...]:
    """Why no queues can hold the rates. A mistake's path is the pair's stated traffic, or else the
    rate of the NIC, which has one mistake at most."""
    stated = plan.job.traffic if plan.job.kind == "torchrun" else {}
    nics = {(server.name, nic.rail): (path, nic) for path, server, nic in nics_of(plan.cluster)}
    found: dict[str, str] = {}
    policy, rated = SHARINGS[allocation.sharing], set()
    for queue in policy.queues(allocation):
        path, nic = nics[queue.source, queue.rail]
        place, remedy = f"{path}.rate", _FASTER
        whose = f"the job on {queue.source}"
        if not queue.for_the_job:
            pair = queue.source, queue.destinations[0]
            rated.add(pair)
            whose = " to ".join(pair)
            if stated:
                place, remedy = ".".join(("job.traffic", *pair)), _ALIKE
        if (wire := wire_rate(queue.minimum, nic.mtu_bytes)) < LEAST_CLASS_BITS_PER_SECOND:
            found.setdefault(
                place,
                f"{whose} would get {wire} bit/s on rail {queue.rail}, and Open vSwitch gives no "
                f"queue less than {LEAST_CLASS_BITS_PER_SECOND} bit/s; {remedy}",
            )
    if policy.decides_rates:
        for source, row in stated.items():
            for to, weight in row.items():
                if weight > 0 and (source, to) not in rated:
                    what = f"{source} to {to} would get no rate; {_ALIKE}"
                    found[f"job.traffic.{source}.{to}"] = what
    return tuple(found.items())


def doubts(
    plan: Plan, able: Mapping[str, Capabilities], desired: Mapping[str, DesiredState]
) -> tuple[str, ...]:
    """Why promised rates may not be delivered. It is not certain, so the plan is still applied."""
    return (*_too_fast(able, desired), *_rdma_beside(plan, able))


def _steering(capabilities: Capabilities) -> Refusal | None:
    if capabilities.datapath == "none":
        return Refusal(
            what="Open vSwitch does not answer, so no traffic can be shaped",
            where="datapath",
            remedy="install and start openvswitch-switch; `agent doctor` there says more",
        )
    if capabilities.steering is None:
        kernel = capabilities.traffic_control
        has = ", ".join((*kernel.qdiscs, *kernel.classifiers)) or "none of it"
        return Refusal(
            what=f"traffic cannot be led into queues: the {capabilities.datapath} datapath needs "
            f"{'HTB' if capabilities.set_queue_honoured else 'HTB and u32'}, the kernel has {has}",
            where=f"kernel {capabilities.kernel_version}",
            remedy="load or build sch_htb and cls_u32; `agent doctor` there says more",
        )
    return None


def _too_fast(
    able: Mapping[str, Capabilities], desired: Mapping[str, DesiredState]
) -> Iterator[str]:
    fast = [
        f"{server} {shaper.nic} ({shaper.max_bits_per_second / _GIGABIT:g} Gbit/s)"
        for server, state in desired.items()
        if server in able
        for shaper in state.shapers
        if shaper.max_bits_per_second > SOFTWARE_HTB_BITS_PER_SECOND
    ]
    if fast:
        yield (
            f"{few_names(fast)}: software HTB carries {SOFTWARE_HTB_BITS_PER_SECOND / _GIGABIT:g} "
            "to 40 Gbit/s of a NIC, and Open vSwitch never asks a NIC to do it in hardware: the "
            "measurement will show whether software is enough here"
        )


def _rdma_beside(plan: Plan, able: Mapping[str, Capabilities]) -> Iterator[str]:
    found = []
    for server in plan.cluster.servers:
        nics: dict[str, NicFacts] = {nic.name: nic for nic in able[server.name].nics}
        found += [
            f"{server.name} {nic.name}"
            for nic in server.nics
            if nic.name in nics and nics[nic.name].rdma
        ]
    if found:
        yield (
            f"{few_names(found)} can do RDMA, which bypasses every queue: this job uses sockets, "
            "but this plan's rates do not limit what others send by RDMA there"
        )
