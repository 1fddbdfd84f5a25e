"""Reads the Cluster from a plan, or from a file with only the plan's `cluster` section.

Only `cluster` is read, and `network.rails`, which names the rails that carry the job.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.cluster_plan.checks import cluster_mistakes
from placewire.optimizer.cluster_plan.conversion import cluster_of
from placewire.optimizer.cluster_plan.documents import DocumentError, parsed, read_yaml
from placewire.optimizer.cluster_plan.section import ChosenRails, PlanCluster


class _RailsOfNetwork(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    rails: ChosenRails = None


class _ClusterOfPlan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    cluster: PlanCluster
    network: _RailsOfNetwork = _RailsOfNetwork()


def read_plan_cluster(path: Path) -> tuple[Cluster, str]:
    """(the cluster, a sentence that says what was read of the file). Raises OSError; DocumentError
    with every mistake in what is read, by its YAML path."""
    document = read_yaml(path)
    if not isinstance(document, dict) or "cluster" not in document:
        what = "a mapping with the key `cluster`, as in plan.yaml"
        raise DocumentError([("", f"no cluster in it; accepted: {what}")])
    described = parsed(_ClusterOfPlan, document)
    rails = described.network.rails
    if mistakes := list(cluster_mistakes(described.cluster, rails)):
        raise DocumentError(mistakes)
    words = f"cluster of {path}: {len(described.cluster.servers)} servers"
    if rails is not None:
        words += f", its network.rails {', '.join(rails)}"
    words += "; line rates as payload"
    if set(document) - {"cluster"}:
        words += "; the rest of the plan is not used"
    return cluster_of(described.cluster, rails), words
