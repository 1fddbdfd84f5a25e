"""Asks on servers, before anything changes, what ranks would make of a folder of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.errors import JobFailed, UsageError
from placewire.controller.few_names import few_names
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.job_optimizer import PlanOptimizer
from placewire.controller.verify.looks import Look, answers_of, problems_among
from placewire.job.contract.checkpoint_look import CheckpointAnswer, CheckpointQuestion
from placewire.job.contract.job_identity import JobIdentity
from placewire.optimizer.capture.optimizer_options import DEFAULTS
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.halves import forward_hash

_PROGRAM = "placewire.job.contract.checkpoint_look"
_OF_TORCH = "torch.optim:"
_KEEPING = ("momentum", "amsgrad", "centered")


@dataclass(frozen=True)
class CheckpointOutlook:
    """By server, in the order in which they were named. problems: UsageError where ranks would
    refuse the folder, JobFailed where no program can look at it. begins: with which step the job
    begins, a sentence. is_of_step_0: whether that is step 0, as far as anybody tells."""

    problems: Mapping[str, UsageError | JobFailed]
    begins: Mapping[str, str]
    is_of_step_0: bool = False

    def beginnings(self) -> Mapping[str, str]:
        """The servers that say it, by what they say: one entry where all see the same folder."""
        alike: dict[str, list[str]] = {}
        for server, told in self.begins.items():
            alike.setdefault(told, []).append(server)
        return {told: few_names(some) for told, some in alike.items()}


def planned_identity(job: PlacedJob) -> JobIdentity:
    """What the plan alone says of its job."""
    return JobIdentity(
        model=job.model, batch=job.batch, seed=job.seed, optimizer=job.optimizer.name
    )


def captured_identity(job: PlacedJob, graph_file: Path) -> JobIdentity:
    """job: as ranks would run it. graph_file: its step's. The tensors of the model are not there:
    only ranks have them. Nor is what computes the loss, in a file of a graph that notes no loss."""
    graph = load_graph(graph_file)
    computation = forward_hash(graph)
    known = {
        "structure_hash": graph.structure_hash if computation else None,
        "computation_hash": computation,
        "accumulate": int(job.accumulate),
        "shards": int(job.shards),
    }
    return planned_identity(job).model_copy(update=known)


def _kept_by(optimizer: PlanOptimizer) -> tuple[str, ...]:
    """The options for which it keeps more of all parameters, whichever group they are in."""
    if optimizer.name not in DEFAULTS and not optimizer.name.startswith(_OF_TORCH):
        return ()  # Another class may mean something else by them.
    every = [optimizer.all_options]
    every += [{**optimizer.all_options, **group.all_options} for group in optimizer.groups]
    return tuple(o for o in _KEEPING if all(options.get(o) for options in every))


async def checkpoint_outlook(
    job: PlacedJob, identity: JobIdentity, launcher: Launcher, servers: Sequence[str]
) -> CheckpointOutlook:
    """All servers are heard. Empty where the job saves nothing, and where programs do not run on
    the servers."""
    checkpoint = job.checkpoint
    if checkpoint is None:
        return CheckpointOutlook({}, {})
    asked = CheckpointQuestion(
        folder=checkpoint.folder,
        resume=checkpoint.resume,
        steps=job.steps,
        job=identity,
        keeps=_kept_by(job.optimizer),
    )
    look = Look(_PROGRAM, asked, CheckpointAnswer, "job.checkpoint.folder")
    answers = await answers_of(look, launcher, servers)
    begins, resume = dict[str, str](), False
    for server, told in answers.items():
        if isinstance(told, CheckpointAnswer) and told.problem is None:
            begins[server] = told.begins
            resume = resume or told.resumes
    return CheckpointOutlook(problems_among(answers), begins, bool(begins) and not resume)
