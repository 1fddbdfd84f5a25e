"""The plan as frozen types: what plan.yaml may say, one field at a time.

Its cluster, in the NICs' own (line) rates, is optimizer/cluster_plan/section.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from controller.plan_values import (
    Count,
    Floor,
    Folder,
    Fraction,
    Gap,
    LearningRate,
    Lease,
    MeasuredSeconds,
    Momentum,
    Norm,
    PathText,
    PlanName,
    SecretText,
    Seed,
    TcpPort,
    Threads,
    TimeLimit,
    TimeScale,
    TrafficMatrix,
    VariableName,
    Version,
    Warmup,
    WeightDecay,
)
from optimizer.cluster import Cluster
from optimizer.cluster_plan.conversion import cluster_of
from optimizer.cluster_plan.section import ChosenRails, FrozenSection, PlanCluster
from optimizer.cluster_plan.values import Flag, Text
from optimizer.names import ENTITLED_FRACTION, Backend, EngineName, Sharing, is_cpu


class PlanSchedule(FrozenSection):
    """Of the learning rate. What each name takes, and the meanings, are the optimizer's."""

    name: Literal["constant", "linear", "cosine", "step"] = "constant"
    warmup_steps: Warmup = 0
    total_steps: Count | None = None
    final: Fraction | None = None
    every_steps: Count | None = None
    decay: Fraction | None = None


class PlanOptimizer(FrozenSection):
    name: Literal["adamw", "sgd"] = "adamw"
    lr: LearningRate = 1e-3
    momentum: Momentum | None = None
    weight_decay: WeightDecay | None = None
    clip_norm: Norm | None = None
    schedule: PlanSchedule = PlanSchedule()

    @property
    def options(self) -> Mapping[str, float]:
        given = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {key: value for key, value in given.items() if value is not None}


class PlanCheckpoint(FrozenSection):
    """folder: the same one on every server. every: steps. keep: how many of the last ones stay."""

    folder: Folder
    every: Count = 100
    keep: Count = 2
    resume: Literal["auto", "never", "required"] = "auto"


class PlanTrace(FrozenSection):
    """Of the job's last steps, by every rank, each in its server's folder of that name."""

    folder: Folder
    steps: Count = 2


class PlacedJob(FrozenSection):
    """Runs the captured model. python, workdir and env say how ranks start on the servers."""

    kind: Literal["placed"]
    model: Text
    batch: Count
    accumulate: Count = 1
    autocast: Literal["bf16"] | None = None
    optimizer: PlanOptimizer = PlanOptimizer()
    steps: Count
    seed: Seed = 0
    checkpoint: PlanCheckpoint | None = None
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: Threads = 1
    trace: PlanTrace | None = None
    python: PathText | None = None
    workdir: PathText | None = None
    env: Mapping[VariableName, SecretText] = {}

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


class ReplayJob(FrozenSection):
    """Runs a graph file's timings with real transfers; time_scale slows its operators."""

    kind: Literal["replay"]
    graph: PathText
    steps: Count
    time_scale: TimeScale = 1.0
    backend: Literal["auto", "gloo"] = "auto"
    threads: Threads = 1
    trace: PlanTrace | None = None
    python: PathText | None = None
    workdir: PathText | None = None
    env: Mapping[VariableName, SecretText] = {}


class TorchrunJob(FrozenSection):
    """A script that places itself (DDP, FSDP, ...), `processes` of it on every server, as torchrun
    starts it. traffic: how much each server sends to each other one, in any one unit; nothing where
    all send alike."""

    kind: Literal["torchrun"]
    script: PathText
    arguments: tuple[Text, ...] = ()
    processes: Count = 1
    traffic: TrafficMatrix = Field(default_factory=dict)
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    threads: Threads = 1
    python: PathText | None = None
    workdir: PathText | None = None
    env: Mapping[VariableName, SecretText] = {}


Job = Annotated[PlacedJob | ReplayJob | TorchrunJob, Field(discriminator="kind")]


class PlanLaunch(FrozenSection):
    """How ranks are started on the servers, each reached at its management address.

    user: who they run as there; None: who runs the controller. key, known_hosts: files on the
    controller's machine; None: those that ssh itself would use, and ssh-agent.
    """

    kind: Literal["ssh"]
    user: Text | None = None
    port: TcpPort = 22
    key: PathText | None = None
    known_hosts: PathText | None = None


class PlanSolve(FrozenSection):
    engine: EngineName = "auto"
    gap: Gap = 0.05
    time_limit_seconds: TimeLimit = Field(alias="time_limit", default=60.0)
    seed: Seed = 0


class PlanVerify(FrozenSection):
    tolerance: Fraction = 0.10
    seconds: MeasuredSeconds = 3.0


class PlanNetwork(FrozenSection):
    """rails: only these carry the job (all by default). floor: what the job is entitled to of each
    NIC when others want it too. lease: for how long a running job keeps its network when nobody
    renews it. calibrate: whether paths are measured through the job's own backend, too. drift:
    what becomes of what others change of our network while it is in force."""

    sharing: Literal["auto", Sharing] = "auto"
    floor: Floor = ENTITLED_FRACTION
    verify_settings: PlanVerify = Field(alias="verify", default=PlanVerify())
    calibrate: Flag = False
    on_exit: Literal["restore", "keep"] = "restore"
    drift: Literal["heal", "report"] = "heal"
    rails: ChosenRails = None
    lease_seconds: Lease = Field(alias="lease", default=30.0)


class Plan(FrozenSection):
    version: Annotated[Literal[1], Version]
    name: PlanName
    cluster: PlanCluster
    job: Job
    launch: PlanLaunch | None = None
    solve: PlanSolve = PlanSolve()
    network: PlanNetwork = PlanNetwork()

    @property
    def rails(self) -> tuple[str, ...]:
        """The rails that carry the job."""
        return self.network.rails or self.cluster.rails

    @property
    def backend(self) -> Backend:
        """What carries the job's messages; auto: NCCL where every device is CUDA's."""
        if isinstance(self.job, ReplayJob) or self.job.backend == "gloo":
            return "gloo"
        devices = [device for server in self.cluster.servers for device in server.devices]
        on_cuda = all(not is_cpu(device.type) for device in devices)
        return "nccl" if self.job.backend == "nccl" or on_cuda else "gloo"

    @property
    def payload_cluster(self) -> Cluster:
        """What the placement is found for: payload rates, of the rails that carry the job. Raises
        DocumentError while the set-up latency is yet to be measured."""
        return cluster_of(self.cluster, self.network.rails)
