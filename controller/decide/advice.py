"""Says what to train a plan's step with; asks no agent, and changes nothing but the cache."""

from __future__ import annotations

from pathlib import Path

from placewire.controller.decide.cached_file import make_cache, write_cached
from placewire.controller.decide.measured.calibration import with_measured
from placewire.controller.decide.measured.optimizer_process import (
    OPTIMIZER_PROGRAM,
    Say,
    run_relayed,
)
from placewire.controller.decide.variants import variants_of
from placewire.controller.errors import PlanError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan


async def advise(
    plan: Plan, plan_file: Path, launcher: Launcher, cache: Path, say: Say, *, as_json: bool
) -> str:
    """What `optimizer advise` prints of the plan's step, in every number of micro-batches and
    shards, and with layers computed again where a device cannot hold it and the plan does not say
    which, on the plan's cluster. Raises PlanError where the job is not placed by us, or has a
    profile, and what variants_of and run_relayed raise."""
    if not isinstance(plan.job, PlacedJob):
        what = f"advise compares ways to train a captured model, and this job is {plan.job.kind}"
        raise PlanError(str(plan_file), [("job.kind", f"{what}; give `kind: placed`")])
    if plan.job.profile is not None:
        what = "advise measures the step in several numbers of micro-batches, and a profile has one"
        instead = f"leave it out, or run `optimizer advise {plan.job.profile} --cluster FILE`"
        raise PlanError(str(plan_file), [("job.profile", f"{what}; {instead}")])
    job = plan.job.model_copy(update={"accumulate": "auto", "shards": "auto"})
    make_cache(cache)
    plan = with_measured(plan, cache, say)
    variants = await variants_of(plan, job, plan_file, launcher, cache, say, compared=True)
    cluster = plan.payload_cluster
    cluster_file = cache / f"cluster-{cluster.digest[:16]}.json"
    write_cached(cluster_file, cluster.model_dump_json())
    words = [
        *OPTIMIZER_PROGRAM, "advise", *(str(variant.scored_file) for variant in variants),
        "--cluster", str(cluster_file), "--time-limit", str(plan.solve.time_limit_seconds),
        "--seed", str(plan.solve.seed), *(["--json"] if as_json else []),
    ]  # fmt: skip
    return (await run_relayed(words, say)).decode()
