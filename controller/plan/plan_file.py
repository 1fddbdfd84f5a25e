"""Reads plan.yaml.

All mistakes are reported at once, before anything is touched: each with its YAML path, what was
found and what would be accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placewire.controller.errors import PlanError
from placewire.controller.plan.checks import mistakes_of
from placewire.controller.plan.plan import Plan
from placewire.optimizer.cluster_plan.documents import DocumentError, parsed, read_yaml
from placewire.optimizer.graph.document_kind import PLAN, other_kind
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import GraphError


def load_plan(path: Path, *, runs_job: bool = True) -> Plan:
    """runs_job: as in mistakes_of. Raises PlanError with every mistake found."""
    return read_plan(path, runs_job=runs_job)[1]


def read_plan(path: Path, *, runs_job: bool = True) -> tuple[object, Plan]:
    """Returns the file's parsed YAML, and the plan that it is. Raises as load_plan does."""
    try:
        document = read_yaml(path)
    except OSError as error:
        raise PlanError(str(path), [("", f"cannot be read: {error.strerror}")]) from error
    except DocumentError as error:
        mistakes = [("", other)] if (other := _packed_kind(path)) else error.mistakes
        raise PlanError(str(path), mistakes) from error
    return document, parse_plan(document, str(path), base=path.resolve().parent, runs_job=runs_job)


def _packed_kind(path: Path) -> str | None:
    """Says which other file of ours this is, where it is no YAML, as a compressed graph is none."""
    try:
        return other_kind(read_json(path), PLAN)
    except (OSError, GraphError):
        return None


def parse_plan(document: object, file: str, base: Path, *, runs_job: bool = True) -> Plan:
    """base: where to look for relative graph files after the working directory."""
    if not isinstance(document, dict):
        raise PlanError(file, [("", "a plan is a mapping with version, name, cluster and job")])
    if (other := other_kind(document, PLAN)) is not None:
        raise PlanError(file, [("", other)])
    try:
        plan = parsed(Plan, document)
    except DocumentError as error:
        mistakes = [_with_reason(where, what, document) for where, what in error.mistakes]
        raise PlanError(file, mistakes) from error
    if mistakes := list(mistakes_of(plan, base, runs_job=runs_job)):
        raise PlanError(file, mistakes)
    return plan


def _with_reason(where: str, what: str, document: dict[Any, Any]) -> tuple[str, str]:
    """Says of a graph that is given to a job that trains why there is no such key."""
    job = document.get("job")
    if where == "job.graph" and isinstance(job, dict) and job.get("kind") == "placed":
        what = (
            "a placed job trains the model that it names, whose step the servers capture "
            "themselves: it takes no graph file, least of all a decomposed one or that of an "
            "inference; name the model in job.model, or give kind: replay, which runs any graph "
            "and trains nothing"
        )
    return where, what
