"""Allocates bandwidth for a job that places itself, from the traffic that its plan states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placewire.controller.decide.cached_file import write_cached
from placewire.controller.decide.measured.digests import digest
from placewire.controller.plan.job import TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.names import SHARING_OF_EVEN_TRAFFIC, SHARING_OF_STATED_TRAFFIC
from placewire.optimizer.network.script_allocation import ScriptAllocation, allocate, even_traffic


@dataclass(frozen=True)
class TrafficDecision:
    allocation: ScriptAllocation
    allocation_file: Path
    # Only the traffic of a script is known, so its step time cannot be predicted.
    predicted_step_seconds: None = None


def decide_traffic(plan: Plan, job: TorchrunJob, cache: Path) -> TrafficDecision:
    """Sharing `auto` means `job` where all servers send alike, so that each may use what the others
    leave; with stated traffic it means `guarantee`, which keeps the stated proportions and lends
    what is idle."""
    cluster = plan.payload_cluster
    sharing = SHARING_OF_STATED_TRAFFIC if job.traffic else SHARING_OF_EVEN_TRAFFIC
    if plan.network.sharing != "auto":
        sharing = plan.network.sharing
    traffic = job.traffic or even_traffic(cluster)
    allocation = allocate(cluster, traffic, sharing, plan.network.floor)
    text = allocation.model_dump_json(indent=1)
    file = cache / f"allocation-{digest([text])}.json"
    write_cached(file, text)
    return TrafficDecision(allocation, file)
