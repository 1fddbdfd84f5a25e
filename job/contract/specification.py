"""What a launcher gives a rank, and what the rank says while it runs.

A job is placed, operator by operator, or replayed; or it is a script of the user's own that
places itself, started on every server as torchrun would. A program of it is started as
`python -m placewire.job SPEC.json`; it writes one JSON event a line to standard output and free
text to standard error. It exits 0 when all steps are done. On standard input it may be told, one
`Hold` a line, for how long it may run on without hearing more; where it is never told, it runs to
its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from placewire.frozen import Frozen
from placewire.job.contract.checkpoint import CheckpointSpec


class RailInterface(Frozen):
    """Of one server. peers: addresses of the others on this rail."""

    rail: str
    interface: str
    address: str
    peers: tuple[str, ...] = ()


class ScheduleSpec(Frozen):
    """As placewire.optimizer.capture.learning_rate_schedule.LearningRateSchedule says."""

    name: Literal["constant", "linear", "cosine", "step"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final: float | None = None
    every_steps: int | None = None
    decay: float | None = None


class OptimizerSpec(Frozen):
    """clip_norm: of the gradients of all parameters together."""

    name: Literal["sgd", "adamw"] = "adamw"
    lr: float = 1e-3
    options: Mapping[str, float] = {}
    clip_norm: float | None = None
    schedule: ScheduleSpec = ScheduleSpec()


class TraceSpec(Frozen):
    """Each rank writes a file of its own, of the last `steps` steps, when they are done. A folder
    that is not there is made. workspace: the step before these is run for what each operator holds
    only while it runs, which is slow; it must not be the job's first."""

    folder: str
    steps: Annotated[int, Field(ge=1)]
    workspace: bool = False

    def file_of(self, rank: int) -> Path:
        return Path(self.folder) / f"rank{rank}.json"


class ProgramSpec(Frozen):
    """What every program of a job is told. device: its `server/index`. rail_interfaces are in the
    order of the cluster's rails, the same on every rank. threads pins torch's thread counts."""

    rank: int
    world_size: int
    device: str
    master_address: str
    master_tcp_port: int
    rail_interfaces: tuple[RailInterface, ...]
    backend: Literal["gloo", "nccl"] = "gloo"
    threads: int = 1


class ScriptSpec(ProgramSpec):
    """One server's part of a script, of `processes` processes; rank and world_size count servers,
    device is the server's first. rail_pattern: which of rail_interfaces each of gloo's contexts is
    on, the same on every server."""

    kind: Literal["torchrun"] = "torchrun"
    script: str
    arguments: tuple[str, ...] = ()
    processes: Annotated[int, Field(ge=1)] = 1
    rail_pattern: tuple[int, ...]


class RankSpec(ProgramSpec):
    """One rank of a placed or replayed job; or of a calibration, which has one for every server of
    the placement's cluster that has a device, and its first device.

    rank order is the order of placement.devices_used. gloo's device k is rail k, and a part on rail
    k has a tag that is k modulo the number of rails. model and graph_file: exactly one is set, for
    a calibration none. time_scale multiplies operator times in a replay. sockets_per_rail:
    connections of a pair, per rail and direction.
    urgent_first: whether the send order of `job` sharing is kept, or messages leave as they come.
    timeout_seconds: how long ranks wait for each other before the first step. loss_seconds: a rank
    that gives no sign of life for so long is lost. wait_seconds: how long a living rank may keep
    another waiting within a step.
    """

    kind: Literal["placed", "replay", "calibrate"]
    placement_file: str
    sockets_per_rail: Annotated[int, Field(ge=1, le=16)] = 1
    urgent_first: bool = True
    model: str | None = None
    graph_file: str | None = None
    batch: int = 1
    accumulate: int = 1
    autocast: Literal["bf16"] | None = None
    optimizer: OptimizerSpec = OptimizerSpec()
    steps: int
    seed: int = 0
    time_scale: float = 1.0
    checkpoint: CheckpointSpec | None = None
    trace: TraceSpec | None = None
    timeout_seconds: float = 120.0
    loss_seconds: float = 20.0
    wait_seconds: float = 600.0


_SPEC: TypeAdapter[RankSpec | ScriptSpec] = TypeAdapter(
    Annotated[RankSpec | ScriptSpec, Field(discriminator="kind")]
)


def parse_spec(document: str | bytes) -> RankSpec | ScriptSpec:
    """Raises pydantic.ValidationError on anything else."""
    return _SPEC.validate_json(document)


class Hold(Frozen):
    """The network stays as it is for so long from now on."""

    held_seconds: float


class Started(Frozen):
    event: Literal["started"] = "started"
    rank: int
    pid: int
    structure_hash: str
    notes: tuple[str, ...] = ()


class Resumed(Frozen):
    """From rank 0: step is the first that runs now."""

    event: Literal["resumed"] = "resumed"
    rank: int
    step: int
    path: str
    notes: tuple[str, ...] = ()


class Saved(Frozen):
    """From rank 0: a checkpoint after `step` steps is whole and on disk. bytes: of all ranks."""

    event: Literal["saved"] = "saved"
    rank: int
    step: int
    path: str
    bytes: int
    seconds: float


class MeasuredPath(Frozen):
    """A message of n bytes from source to destination (servers) takes setup_seconds + 8 n /
    bits_per_second; on one rail, or over all of these together."""

    source: str
    destination: str
    rails: tuple[str, ...]
    setup_seconds: float
    bits_per_second: float


class Calibrated(Frozen):
    """What this rank measured as the source. left_out: how many paths more there are, for which
    there was no time."""

    event: Literal["calibrated"] = "calibrated"
    rank: int
    paths: tuple[MeasuredPath, ...]
    left_out: int = 0


class StepDone(Frozen):
    """loss only from the rank that computes it; seconds from a barrier before the step."""

    event: Literal["step"] = "step"
    rank: int
    step: int
    seconds: float
    loss: float | None = None


class Carried(Frozen):
    """Bytes that a script's server has sent on each rail since it began, all headers counted."""

    event: Literal["carried"] = "carried"
    rank: int
    seconds: float
    sent_bytes: Mapping[str, int]


class Traffic(Frozen):
    """Payload bytes that this rank sent over all steps, by destination device and rail."""

    destination: str
    rail: str
    bytes: int


class Finished(Frozen):
    """peak_memory_bytes: of the process at any time, capture included. step_memory_bytes: the most
    that its steps from the second on took beside program_memory_bytes, which is what is there
    between two steps apart from parameters, buffers and optimizer state; None where there were no
    two steps. On a GPU both are the GPU's. Of a script: the most that one of its processes took.
    """

    event: Literal["finished"] = "finished"
    rank: int
    traffic: tuple[Traffic, ...]
    peak_memory_bytes: int
    step_memory_bytes: int | None = None
    program_memory_bytes: int | None = None


class Failed(Frozen):
    """lost_rank: the rank whose loss is the cause, where it is another's."""

    event: Literal["failed"] = "failed"
    rank: int
    what: str
    remedy: str = ""
    lost_rank: int | None = None


RankEvent = Started | Resumed | Calibrated | Carried | StepDone | Saved | Finished | Failed
_EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[RankEvent, Field(discriminator="event")])


def parse_rank_event(line: str | bytes) -> RankEvent:
    """Raises pydantic.ValidationError on anything else."""
    event: RankEvent = _EVENT.validate_json(line)
    return event
