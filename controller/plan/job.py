"""The job of a plan as frozen types: three kinds, told apart by `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from placewire.controller.plan.values import (
    Count,
    Folder,
    Fraction,
    LearningRate,
    Momentum,
    Norm,
    PathText,
    SecretText,
    Seed,
    Threads,
    TimeScale,
    TrafficMatrix,
    VariableName,
    Warmup,
    WeightDecay,
)
from placewire.frozen import Frozen
from placewire.optimizer.cluster_plan.values import Text


class PlanSchedule(Frozen):
    """Of the learning rate. What each name takes is checked by the optimizer."""

    name: Literal["constant", "linear", "cosine", "step"] = Field(
        "constant", description="how the rate goes on after its warm-up"
    )
    warmup_steps: Warmup = Field(
        0, description="the first steps, over which the rate rises to `lr`"
    )
    total_steps: Count | None = Field(
        None,
        description="of `linear` and `cosine`: where the rate has fallen, warming up included; "
        "none: the job's `steps`",
    )
    final: Fraction | None = Field(
        None, description="of `linear` and `cosine`: what is left then, a part of `lr`; none: 0"
    )
    every_steps: Count | None = Field(
        None,
        description="of `step`, which needs it: after how many steps the rate falls, again and "
        "again",
    )
    decay: Fraction | None = Field(
        None,
        description="of `step`: what is left each time, a part of the rate before; none: 0.1",
    )


class PlanOptimizer(Frozen):
    name: Literal["adamw", "sgd"] = Field("adamw", description="torch's AdamW, or its SGD")
    lr: LearningRate = Field(1e-3, description="the learning rate")
    momentum: Momentum | None = Field(None, description="of `sgd` only; none: torch's default")
    weight_decay: WeightDecay | None = Field(None, description="none: torch's default")
    clip_norm: Norm | None = Field(
        None,
        description="the largest norm of all gradients together; above it all are scaled down, as "
        "`clip_grad_norm_` does; none: no limit",
    )
    schedule: PlanSchedule = Field(
        PlanSchedule(), description="how the learning rate changes with the step"
    )

    @property
    def options(self) -> Mapping[str, float]:
        given = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {key: value for key, value in given.items() if value is not None}


class PlanCheckpoint(Frozen):
    folder: Folder = Field(description="the same folder on every server, shared by them")
    every: Count = Field(
        100,
        description="steps from one checkpoint to the next; there is one after the last step too",
    )
    keep: Count = Field(2, description="how many of the last ones are kept")
    resume: Literal["auto", "never", "required"] = Field(
        "auto",
        description="`auto` goes on from the last one in the folder, if there is any; `required` "
        "is refused where there is none, `never` where there is one",
    )


class PlanTrace(Frozen):
    folder: Folder = Field(description="where each rank writes its file, on its own server")
    steps: Count = Field(2, description="how many steps are recorded, the job's last ones")


# What every kind of job has, with the same words.
Steps = Annotated[
    Count,
    Field(description="how many steps run, those of a checkpoint that it goes on from included"),
]
RankThreads = Annotated[
    Threads, Field(description="torch threads of a rank; profile and job use the same")
]
Trace = Annotated[
    PlanTrace | None,
    Field(description="ranks record when their operators and messages ran; none: they do not"),
]
Python = Annotated[
    PathText | None,
    Field(
        description="the interpreter of ranks; none: the controller's, and with `launch` the one "
        "that is installed with the agent"
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
        description="variables of ranks, names to texts; their values stand in no message, log, "
        "journal or preview"
    ),
]


class PlacedJob(Frozen):
    """Runs the captured model, placed operator by operator."""

    kind: Literal["placed"] = Field(description="how the job runs")
    model: Text = Field(
        description="`package.module:function`, looked for in `workdir`, then beside the plan"
    )
    batch: Count = Field(description="examples a step")
    accumulate: Count = Field(
        1,
        description="into how many equal micro-batches the batch is cut; their gradients are added "
        "before the one update",
    )
    autocast: Literal["bf16"] | None = Field(
        None, description="model and loss run under `torch.autocast`; none: they do not"
    )
    optimizer: PlanOptimizer = Field(PlanOptimizer(), description="what updates the parameters")
    steps: Steps
    seed: Seed = Field(0, description="of parameters, data and dropout")
    checkpoint: PlanCheckpoint | None = Field(
        None, description="what is saved while it trains; none: nothing"
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto",
        description="what carries messages; `nccl` wants CUDA devices everywhere, and is `auto` "
        "there; else `auto` is `gloo`",
    )
    threads: RankThreads = 1
    trace: Trace = None
    python: Python = None
    workdir: Workdir = None
    env: Environment = Field(default_factory=dict)

    @property
    def optimizer_document(self) -> dict[str, Any]:
        """What capture and ranks are given. A falling learning rate ends with the job's steps,
        where the plan does not say when."""
        chosen = self.optimizer
        schedule = chosen.schedule.model_dump(exclude_none=True)
        if chosen.schedule.name in ("linear", "cosine"):
            schedule.setdefault("total_steps", self.steps)
        return {
            "name": chosen.name,
            "lr": chosen.lr,
            "options": dict(chosen.options),
            "clip_norm": chosen.clip_norm,
            "schedule": schedule,
        }


class ReplayJob(Frozen):
    """Runs a graph file's timings with real messages: its operators only take their time."""

    kind: Literal["replay"] = Field(description="how the job runs")
    graph: PathText = Field(
        description="a file of `optimizer profile`, looked for in the working directory, then "
        "beside the plan"
    )
    steps: Steps
    time_scale: TimeScale = Field(
        1.0,
        description="how many times slower operators run, messages are set up, and bytes travel "
        "inside a server; NICs are what they are",
    )
    backend: Literal["auto", "gloo"] = Field("auto", description="what carries messages: gloo")
    threads: RankThreads = 1
    trace: Trace = None
    python: Python = None
    workdir: Workdir = None
    env: Environment = Field(default_factory=dict)


class TorchrunJob(Frozen):
    """Runs a script that places itself (DDP, FSDP, ...), unmodified, on every server of the plan,
    and has it use every NIC. `solve` is not read."""

    kind: Literal["torchrun"] = Field(description="how the job runs")
    script: PathText = Field(description="a Python file, looked for in `workdir`")
    arguments: tuple[Text, ...] = Field((), description="texts for it")
    processes: Count = Field(
        1, description="how many of it run on each server, as torchrun's `--nproc-per-node`"
    )
    traffic: TrafficMatrix = Field(
        default_factory=dict,
        description="how much each server sends to each other one, in any one unit: rates are in "
        "proportion, as large as the NICs allow; `even`: all send alike",
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto",
        description="what the script is told to use; `nccl` wants CUDA devices everywhere, and is "
        "`auto` there; else `auto` is `gloo`",
    )
    threads: RankThreads = 1
    python: Python = None
    workdir: Workdir = None
    env: Environment = Field(default_factory=dict)


Job = Annotated[PlacedJob | ReplayJob | TorchrunJob, Field(discriminator="kind")]
