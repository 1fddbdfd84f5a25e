"""Compiles a user's own script to one ScriptSpec per server; divides its traffic over the rails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.controller.compile.rail_pattern import pattern_shares, rail_pattern
from placewire.controller.compile.ranks import rail_interfaces
from placewire.controller.plan.job import Job, TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.job.contract.specification import ScriptSpec
from placewire.optimizer.device_names import device_name

# A collective in parts takes so long beside the time of its bytes, for the threads and handles of
# all parts: 0.3 ms were measured on two slow cores, and one to two where others use these, too.
_CUT_SECONDS = 1e-3
# Half of it leaves at once, however slow the queue of a NIC is, so that no NIC saves time on less.
_LEAST_CUT_BYTES = 131_072


def script_specs(plan: Plan, job: TorchrunJob) -> tuple[ScriptSpec, ...]:
    """One per server, in plan order."""
    shares = rail_shares(plan)
    servers, rates = plan.cluster.servers, tuple(_rates(plan).values())
    pattern = _pattern(plan, job, shares)
    # torchrun, too, gives several processes on a server one thread each, and one all.
    threads = job.threads or (1 if job.processes > 1 else 0)
    return tuple(
        ScriptSpec(
            rank=rank,
            world_size=len(servers),
            device=device_name(server.name, 0),
            master_address=servers[0].management,
            master_tcp_port=job.rendezvous_port,
            rail_interfaces=rail_interfaces(plan, server, shares),
            rail_pattern=pattern,
            rail_parts=tuple(shares.values()) if _cuts(plan, job) else (),
            cut_from_bytes=cut_from_bytes(rates),
            fastest_bits_per_second=max(rates),
            backend=plan.backend,
            threads=threads,
            script=job.script,
            arguments=job.arguments,
            processes=job.processes,
            python=job.python_words,
        )
        for rank, server in enumerate(servers)
    )


def planned_shares(plan: Plan) -> Mapping[str, float]:
    """By rail, the part of a server's traffic that goes there: `rail_shares`, or as near to them as
    whole collectives allow."""
    shares, job = rail_shares(plan), plan.job
    if job.kind != "torchrun" or _cuts(plan, job):
        return shares
    pattern = _pattern(plan, job, shares)
    return dict(zip(shares, pattern_shares(pattern, len(shares)), strict=True))


def _pattern(plan: Plan, job: TorchrunJob, shares: Mapping[str, float]) -> tuple[int, ...]:
    processes = job.processes * len(plan.cluster.servers)
    return rail_pattern(tuple(shares.values()), processes)


def _cuts(plan: Plan, job: Job) -> bool:
    """Whether large collectives are cut between the rails. NCCL uses all by itself."""
    return job.kind == "torchrun" and job.cut_collectives and plan.backend == "gloo"


def cut_from_bytes(rates_bits_per_second: Sequence[float]) -> int:
    """The size of a rank's tensor from which on a collective that is cut between the rails ends
    before a whole one on the fastest."""
    fastest, together = max(rates_bits_per_second), sum(rates_bits_per_second)
    seconds_per_byte = 8 / fastest - 8 / together
    if seconds_per_byte <= 0:
        return _LEAST_CUT_BYTES
    return max(round(_CUT_SECONDS / seconds_per_byte), _LEAST_CUT_BYTES)


def rail_shares(plan: Plan) -> Mapping[str, float]:
    """By rail, the part of a server's traffic that should go there; the parts sum to 1. They are in
    proportion to the slowest NIC or uplink of each rail, which a ring waits for. A rail that not
    every server is on has none, because all processes divide their traffic alike."""
    rates = _rates(plan)
    return {rail: rate / sum(rates.values()) for rail, rate in rates.items()}


def _rates(plan: Plan) -> Mapping[str, float]:
    """Returns the rate of the slowest NIC or uplink of each rail that every server is on."""
    servers, pods = plan.cluster.servers, plan.cluster.pods or ()
    found = {}
    for rail in plan.rails:
        nics = [n.rate_bits_per_second for s in servers for n in s.nics if n.rail == rail]
        if len(nics) == len(servers):
            found[rail] = min([*nics, *(pod.uplink_of(rail) for pod in pods)])
    return found
