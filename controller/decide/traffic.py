"""plan.yaml to bandwidth, for a job that places itself: from the traffic that the plan states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.decide.measured.digests import digest
from placewire.optimizer.names import SHARING_OF_EVEN_TRAFFIC, SHARING_OF_STATED_TRAFFIC
from placewire.optimizer.network.script_allocation import allocate, even_traffic

if TYPE_CHECKING:
    from placewire.controller.plan.job import TorchrunJob
    from placewire.controller.plan.plan import Plan
    from placewire.optimizer.network.script_allocation import ScriptAllocation


@dataclass(frozen=True)
class TrafficDecision:
    allocation: ScriptAllocation
    allocation_file: Path
    # Of a script nothing is known but what it sends.
    predicted_step_seconds: None = None


def decide_traffic(plan: Plan, job: TorchrunJob, cache: Path) -> TrafficDecision:
    """`auto`: where all send alike to all, any of them may use what the others leave (`job`); what
    is stated unequally is kept unequal, and what is idle is lent (`guarantee`)."""
    cluster = plan.payload_cluster
    sharing = SHARING_OF_STATED_TRAFFIC if job.traffic else SHARING_OF_EVEN_TRAFFIC
    if plan.network.sharing != "auto":
        sharing = plan.network.sharing
    traffic = job.traffic or even_traffic(cluster)
    allocation = allocate(cluster, traffic, sharing, plan.network.floor)
    text = allocation.model_dump_json(indent=1)
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"allocation-{digest([text])}.json"
    file.write_text(text)
    return TrafficDecision(allocation, file)
