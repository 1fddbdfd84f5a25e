"""What is decided of a run before its job begins, as its metrics compare with it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from placewire.controller.compile.scripts import planned_shares
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.traffic import TrafficDecision
from placewire.controller.plan.job import PlacedJob, TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.device_names import server_of
from placewire.optimizer.placement import Placement

# (source server, destination server, the source's NIC)
Pair = tuple[str, str, str]
# The name of the only bucket of a model without buckets.
NO_BUCKET = ""


@dataclass(frozen=True)
class StepFacts:
    """How long a step is predicted to take, and the payload bytes that it sends between servers."""

    predicted_seconds: float
    bytes_by_pair: Mapping[Pair, float]


@dataclass(frozen=True)
class RunFacts:
    """run: the name of the run's log. devices: by rank; of a script, its servers' first.
    memory_bytes: of the devices; () of a script. steps: how many the job has when it is done, and
    samples: how many each has; None where that is not known. by_bucket: the steps of a placed or
    replayed job, by the name of their bucket. shares: of a script, the part of what a server sends
    that is to leave by a NIC, by (server, NIC)."""

    plan: str
    run: str
    kind: str
    sharing: str
    started_unix: float
    devices: tuple[str, ...]
    memory_bytes: tuple[int, ...] = ()
    steps: int | None = None
    samples: int | None = None
    predicted_step_seconds: float | None = None
    by_bucket: Mapping[str, StepFacts] = field(default_factory=dict)
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)


def facts_of(
    run: str, plan: Plan, decision: PlacementDecision | TrafficDecision, started_unix: float
) -> RunFacts:
    nics = {(server.name, nic.rail): nic.name for server in plan.cluster.servers
            for nic in server.nics}  # fmt: skip
    job, sharing = plan.job, decision.allocation.sharing
    if isinstance(decision, TrafficDecision):
        shares = planned_shares(plan)
        return RunFacts(
            plan=plan.name, run=run, kind=job.kind, sharing=sharing, started_unix=started_unix,
            devices=tuple(f"{server.name}/0" for server in plan.cluster.servers),
            shares={(server, nic): shares[rail] for (server, rail), nic in nics.items()
                    if rail in shares},
        )  # fmt: skip
    assert not isinstance(job, TorchrunJob), "a script has no placement"
    placement, cluster = decision.placement, decision.placement.cluster
    memory = dict(zip(cluster.device_names, cluster.memory_bytes.tolist(), strict=True))
    placed = {one.name: one.placement for one in decision.buckets} or {NO_BUCKET: placement}
    return RunFacts(
        plan=plan.name, run=run, kind=job.kind, sharing=sharing, started_unix=started_unix,
        devices=placement.devices_used,
        memory_bytes=tuple(memory[device] for device in placement.devices_used),
        steps=job.steps,
        samples=job.batch if isinstance(job, PlacedJob) else None,
        predicted_step_seconds=decision.predicted_step_seconds,
        by_bucket={name: _step(one, nics) for name, one in placed.items()},
    )  # fmt: skip


def _step(placement: Placement, nics: Mapping[tuple[str, str], str]) -> StepFacts:
    sent: dict[Pair, float] = defaultdict(float)
    for message in placement.messages:
        source, destination = server_of(message.source), server_of(message.destination)
        for rail, share in message.rails.items():  # None within a server.
            sent[source, destination, nics[source, rail]] += message.bytes * share
    return StepFacts(placement.step_seconds, dict(sent))
