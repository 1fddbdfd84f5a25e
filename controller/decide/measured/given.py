"""A profile that a plan gives, `job.profile`, in the place of a measurement: is it of this job?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from placewire.controller.decide.measured.answers import refused
from placewire.controller.errors import PlanError
from placewire.controller.plan.job import PlacedJob
from placewire.optimizer.capture.optimizer_settings import OptimizerSettings
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph

# What a profile notes of the step and of how it was measured, which the job says under these names.
_STEP = ("model", "batch", "accumulate", "shards", "recompute", "autocast", "threads")
# What makes a graph for research, which no job trains.
_RESEARCH = ("inference", "decompose")


def given_profile(
    job: PlacedJob, types: Sequence[str], bucket: str | None, plan_file: Path
) -> tuple[Path, OperatorGraph]:
    """The file, looked for in the working directory, then beside the plan, and its graph. types:
    the device types of the plan. Raises PlanError, at job.profile, where it cannot serve."""
    assert job.profile is not None
    file = next(
        (root / job.profile for root in (Path.cwd(), plan_file.resolve().parent)
         if (root / job.profile).is_file()),
        Path(job.profile),
    )  # fmt: skip
    try:
        graph = load_graph(file)
    except (OSError, GraphError) as error:
        raise not_of_job(plan_file, str(error)) from error
    if wrong := [*_mismatches(job, graph, types, bucket)]:
        raise not_of_job(plan_file, f"{file} is not of this job: {'; '.join(wrong)}")
    return file, graph


def _mismatches(
    job: PlacedJob, graph: OperatorGraph, types: Sequence[str], bucket: str | None
) -> Iterator[str]:
    optimizer = OptimizerSettings.of(job.optimizer_document).signature
    for key, own in {**{key: getattr(job, key) for key in _STEP}, "optimizer": optimizer}.items():
        if graph.notes.get(key) != own:
            yield f"its {key} is {graph.notes.get(key)!r}, and job.{key} is {own!r}"
    for key in _RESEARCH:
        if graph.notes.get(key):
            yield f"it was made with --{key}, which no job trains"
    if bucket is not None or "bucket" in graph.notes:
        yield "the model's batches have several shapes (buckets), and a profile is of one of them"
    if lacking := [name for name in types if name not in graph.device_types]:
        yield f"it has no times of {', '.join(lacking)}, only of {', '.join(graph.device_types)}"


def not_of_job(plan_file: Path, what: str) -> PlanError:
    more = (
        "; make it anew by `controller evaluate` on a server of the plan that has the device type, "
        "or leave it out, so that the step is measured"
    )
    return refused(plan_file, "job.profile", what + more)
