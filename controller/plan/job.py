"""The `job` section of plan.yaml as frozen types: three kinds of job, told apart by `kind`.

docs/reference/plan-yaml.md is made from the class docstrings and the descriptions of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from placewire.controller.plan.job_optimizer import PlanOptimizer
from placewire.controller.plan.values import (
    CommandWords,
    Count,
    CountOrAuto,
    Folder,
    PathText,
    SecretText,
    Seed,
    StartLimit,
    TcpPort,
    Threads,
    TimeScale,
    TrafficMatrix,
    VariableName,
)
from placewire.frozen import Frozen
from placewire.optimizer.capture.variants import Autocast, Cut, cuts
from placewire.optimizer.cluster_plan.values import Flag, Text


class PlanState(Frozen):
    file: Folder = Field(
        description="a file of safetensors or of `torch.save(model.state_dict(), FILE)`, or a "
        "folder of safetensors or of torch.distributed.checkpoint, under this absolute path on "
        "every server"
    )
    entry: Text = Field(
        "",
        description="which entry of the file is the `state_dict()`, like `model` of "
        "`{'model': …, 'optimizer': …}`; empty: the file is one itself",
    )
    module: Text = Field(
        "",
        description="the module that the file is of, by its name in `model.named_modules()`; "
        "empty: the whole model",
    )
    prefix: Text = Field(
        "", description="what names in the file have before those of the module's `state_dict()`"
    )
    partial: Flag = Field(
        False,
        description="begins with what is in both the file and the module, and leaves the rest; "
        "else both must have the same names",
    )


class PlanCheckpoint(Frozen):
    folder: Folder = Field(
        description="a folder that all servers share, under the same path; ranks make it, but no "
        "folder above it"
    )
    every: Count = Field(
        100,
        description="the steps from one checkpoint to the next; the last step makes one too",
    )
    keep: Count = Field(2, description="how many of the latest checkpoints are kept")
    resume: Literal["auto", "never", "required", "changed"] = Field(
        "auto",
        description="`auto` resumes from the latest checkpoint in the folder, if there is one; "
        "`required` refuses to run without one, `never` refuses to run where there is one; "
        "`changed` is `auto`, and also resumes where the model computes otherwise than it did, as "
        "with another dropout",
    )


class PlanValidation(Frozen):
    every: Count = Field(
        100,
        description="the steps from one validation to the next; the last step is followed by one, "
        "too",
    )
    batches: Count = Field(
        description="how many of the model's validation batches each computes, from the first on"
    )


class PlanTrace(Frozen):
    folder: Folder = Field(description="the folder where each rank writes its file, on its server")
    steps: Count = Field(2, description="how many of the job's last steps are recorded")


# That of torchrun's own store, too.
RENDEZVOUS_TCP_PORT = 29400

# Keys that several kinds of job have.
CudaBackend = Annotated[
    Literal["auto", "gloo", "nccl"],
    Field(
        description="what carries messages; of a script, what it uses by its own choice: only "
        "gloo's collectives are cut; `nccl` needs a CUDA device for every rank; `auto` is `nccl` "
        "where every device is CUDA's, else `gloo`"
    ),
]
Steps = Annotated[
    Count,
    Field(description="how many steps the job has, those before a resumed checkpoint included"),
]
RankThreads = Annotated[
    Threads, Field(description="torch threads of each rank, and of the profiles for the job")
]
RendezvousPort = Annotated[
    TcpPort,
    Field(
        description="the TCP port at the management address of the job's first server at which "
        "ranks, or a script's processes, meet (`MASTER_PORT`); it must be free there"
    ),
]
Trace = Annotated[
    PlanTrace | None,
    Field(description="makes ranks record when their operators and messages ran; none: no record"),
]
Python = Annotated[
    PathText | None,
    Field(
        description="the Python interpreter of ranks; none: the controller's own, and with "
        "`launch` the one that was installed with the agent"
    ),
]
Workdir = Annotated[
    PathText | None,
    Field(
        description="the folder that ranks start in and import from; it must exist, with `launch` "
        "on every server; none: where the controller runs, and with `launch` the user's home"
    ),
]
Environment = Annotated[
    Mapping[VariableName, SecretText],
    Field(
        description="environment variables of ranks; no message, log, journal or preview shows "
        "their values"
    ),
]


class PlacedJob(Frozen):
    """Runs the captured model, placed operator by operator."""

    kind: Literal["placed"] = Field(description="how the job runs")
    model: Text = Field(
        description="`package.module:function`; the module is looked for in `workdir`, then, "
        "without `launch`, beside the plan"
    )
    batch: Count = Field(description="the number of examples in a step")
    accumulate: CountOrAuto = Field(
        "auto",
        description="the number of equal micro-batches that the batch is cut into; their gradients "
        "are added up before the one update; `auto`: as many as make the step shortest, out of 1, "
        "the number of devices, and of 2, 4, 8 and 16 those up to four times that; and 1 where "
        "more would change what is trained",
    )
    shards: CountOrAuto = Field(
        1,
        description="the number of shards that a large weight is cut into by rows, and of replicas "
        "that small ones have; each has an update and a device of its own; `auto`: 1, or one for "
        "each device",
    )
    recompute: Literal["none", "half", "all", "auto"] = Field(
        "auto",
        description="the layers that are computed again in the backward half, so that less is held "
        "until then: `none`, `half` (every second one) or `all`; `auto`: what makes the step "
        "shortest, and `none` where the whole step fits into each device's memory; what the model "
        "has in `torch.utils.checkpoint` is computed again in any case",
    )
    autocast: Autocast | None = Field(
        None,
        description="runs model and loss under `torch.autocast`; `fp16` needs `optimizer.scaler`; "
        "none: without it",
    )
    optimizer: PlanOptimizer = Field(PlanOptimizer(), description="what updates the parameters")
    state: PlanState | None = Field(
        None,
        description="values that the model begins with where no checkpoint is resumed, such as "
        "those of a pretrained model; none: those that its function gives it",
    )
    steps: Steps
    seed: Seed = Field(0, description="the random seed of parameters, data and dropout")
    checkpoint: PlanCheckpoint | None = Field(
        None, description="how training is saved, to be resumed later; none: it is not saved"
    )
    validation: PlanValidation | None = Field(
        None,
        description="makes the ranks compute loss and metrics of validation batches, in evaluation "
        "mode, between steps; none: never",
    )
    profile: PathText | None = Field(
        None,
        description="a graph file that `controller evaluate` made of this step, with this "
        "optimizer and number of threads, looked for in the working directory, then beside the "
        "plan; the step is then not measured, and `accumulate`, `shards` and `recompute` are as it "
        "was made; none: the step is measured",
    )
    start_limit_seconds: StartLimit = Field(
        alias="start_limit",
        default=540.0,
        description="how long ranks wait for one that imports and captures the model, with all "
        "that its function does, as where it prepares data",
    )
    backend: CudaBackend = "auto"
    threads: RankThreads = 1
    rendezvous_port: RendezvousPort = RENDEZVOUS_TCP_PORT
    trace: Trace = None
    python: Python = None
    workdir: Workdir = None
    env: Environment = Field(default_factory=dict)

    @property
    def program(self) -> str:
        return self.model

    def cuts(self, devices: int) -> tuple[Cut, ...]:
        """Those among which the search decides; one where nothing is `auto`."""
        return cuts(
            self.accumulate if self.accumulate == "auto" else [self.accumulate],
            self.shards if self.shards == "auto" else [self.shards],
            batch=self.batch,
            devices=devices,
            shardable=self.optimizer.clip_norm is None,
        )

    def cut_as(self, cut: Cut) -> PlacedJob:
        """With `recompute: auto` nothing is computed again."""
        return self.model_copy(
            update={
                "accumulate": cut.accumulate,
                "shards": cut.shards,
                "recompute": "none" if self.recompute == "auto" else self.recompute,
            }
        )

    @property
    def optimizer_document(self) -> dict[str, Any]:
        """For capture and ranks; total_steps of a falling rate defaults to the job's steps."""
        chosen = self.optimizer
        schedule = chosen.schedule.model_dump(exclude_none=True)
        if chosen.schedule.name in ("linear", "cosine"):
            schedule.setdefault("total_steps", self.steps)
        return {
            "name": chosen.name,
            "lr": chosen.lr,
            "options": dict(chosen.all_options),
            "clip_norm": chosen.clip_norm,
            "scaler": None if chosen.scaler is None else chosen.scaler.model_dump(),
            "schedule": schedule,
            "groups": [group.document for group in chosen.groups],
        }


class ReplayJob(Frozen):
    """Replays a graph file: operators only take as long as the file says; messages are real."""

    kind: Literal["replay"] = Field(description="how the job runs")
    graph: PathText = Field(
        description="a graph file that `optimizer profile` wrote, looked for in the working "
        "directory, then beside the plan"
    )
    steps: Steps
    time_scale: TimeScale = Field(
        1.0,
        description="how many times slower operators run, messages are set up, and bytes travel "
        "inside a server; NICs keep their rates",
    )
    backend: Literal["auto", "gloo"] = Field(
        "auto", description="what carries messages: gloo, whichever is given"
    )
    threads: RankThreads = 1
    rendezvous_port: RendezvousPort = RENDEZVOUS_TCP_PORT
    trace: Trace = None
    python: Python = None
    workdir: Workdir = None
    env: Environment = Field(default_factory=dict)

    @property
    def program(self) -> str:
        return self.graph


class TorchrunJob(Frozen):
    """Runs a script that places itself (DDP, FSDP, ...), unmodified, on every server of the plan,
    and makes it use every NIC. The section `solve` is not read."""

    kind: Literal["torchrun"] = Field(description="how the job runs")
    script: PathText = Field(
        description="a Python file, looked for in `workdir`; where `python` ends with `-m`, a "
        "module, as torchrun's `-m`"
    )
    arguments: tuple[Text, ...] = Field((), description="the script's arguments")
    processes: Count = Field(
        1,
        description="the number of processes that run the script on each server, like torchrun's "
        "`--nproc-per-node`",
    )
    traffic: TrafficMatrix = Field(
        default_factory=dict,
        description="how much each server sends to each other server, in any one unit; rates get "
        "these proportions, and are as large as the NICs allow; `even`: all send alike",
    )
    cut_collectives: Flag = Field(
        True,
        description="cuts large collectives of gloo between all NICs, in proportion to their "
        "rates; `false`: each is one NIC's, in turn",
    )
    backend: CudaBackend = "auto"
    threads: Threads | None = Field(
        None,
        description="`OMP_NUM_THREADS` of each process; none: as under torchrun, 1 where "
        "`processes` is more than 1, else what the script takes by itself: every core",
    )
    rendezvous_port: RendezvousPort = RENDEZVOUS_TCP_PORT
    python: CommandWords | None = Field(
        None,
        description="the interpreter that runs the script, of any release and with any torch; or a "
        "list, a command and its arguments that end with one; none: as for ranks",
    )
    workdir: Workdir = None
    env: Environment = Field(default_factory=dict)

    @property
    def program(self) -> str:
        return self.script

    @property
    def python_words(self) -> tuple[str, ...]:
        """() where none is given."""
        return self.python or ()


Job = Annotated[PlacedJob | ReplayJob | TorchrunJob, Field(discriminator="kind")]
