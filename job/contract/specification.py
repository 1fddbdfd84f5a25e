"""What a launcher gives a rank, and the events that the rank reports.

A job is placed operator by operator, or replayed; or it is a script of the user's own that places
itself and is started on every server as torchrun would. Each program of a job is started as
`python -m placewire.job SPEC.json`; it writes one JSON event a line to standard output and free
text to standard error, and exits with 0 when all steps are done. On standard input it may get
`Hold` messages, one a line, each of which limits how long it runs on without another. held_seconds
of the specification limits how long it runs without any; without that, to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from placewire.frozen import Frozen
from placewire.job.contract.checkpoint import CheckpointSpec

# What a rank reports may come from its model: bounded, so that everybody can compute with it.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
# A number that no JSON can say.
NonFinite = Literal["nan", "inf", "-inf"]
# Names as placewire.optimizer.capture.metrics has them.
MetricName = Annotated[str, Field(min_length=1, max_length=64)]
# A sentence may quote what others wrote: a name of any length, or of bytes that are no UTF-8.
_LONGEST_SENTENCE = 10_000
# A script's processes have so long between SIGTERM and SIGKILL, as under torchrun: they may save.
SCRIPT_END_SECONDS = 30.0
# By then the program that started them has ended, too. Before it asks them to end it says why, and
# afterwards it kills what is left and passes on what they printed last.
SCRIPT_GONE_SECONDS = SCRIPT_END_SECONDS + 15.0
# Is in the JSON of every ScriptSpec, and in no other: a quotation mark within a text has a
# backslash before it.
SCRIPT_WORDS = '"kind":"torchrun"'


def _sentence(text: object) -> object:
    """Cuts what is too long for an event, and writes escapes for what no event can hold: the rank
    must be heard whatever it has to tell."""
    if not isinstance(text, str):
        return text
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= _LONGEST_SENTENCE else f"{whole[:_LONGEST_SENTENCE]}…"


Sentence = Annotated[str, BeforeValidator(_sentence)]


class RailInterface(Frozen):
    """One server's interface on one rail. peers: the other servers' addresses on this rail, in the
    order of the plan's servers."""

    rail: str
    interface: str
    address: str
    peers: tuple[str, ...] = ()


class ScheduleSpec(Frozen):
    """The fields of placewire.optimizer.capture.learning_rate_schedule.LearningRateSchedule."""

    name: Literal["constant", "linear", "cosine", "step"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    final: float | None = None
    every_steps: int | None = None
    decay: float | None = None


OptimizerOption = bool | int | float | tuple[float, ...]


class ParameterGroupSpec(Frozen):
    """The fields of placewire.optimizer.capture.parameter_groups.ParameterGroup."""

    match: tuple[str, ...]
    lr: float | None = None
    options: Mapping[str, OptimizerOption] = {}


class ScalerSpec(Frozen):
    """The fields and defaults of placewire.optimizer.capture.gradient_scaler.GradientScaler."""

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


class OptimizerSpec(Frozen):
    """The fields of placewire.optimizer.capture.updates.OptimizerChoice."""

    name: str = "adamw"
    lr: float = 1e-3
    options: Mapping[str, OptimizerOption] = {}
    clip_norm: float | None = None
    scaler: ScalerSpec | None = None
    schedule: ScheduleSpec = ScheduleSpec()
    groups: tuple[ParameterGroupSpec, ...] = ()


class StateSpec(Frozen):
    """Where parameters and buffers begin. file: a file or a folder, under the same path on every
    server. entry: which of its state_dicts it is, "" where it is one. module: which of the model's
    it is of, "" for all. prefix: what its names have before those of that module. partial: what is
    in one of both only is left."""

    file: str
    entry: str = ""
    module: str = ""
    prefix: str = ""
    partial: bool = False


class ValidationSpec(Frozen):
    """After every so many steps, and after the last, so many of the model's validation batches are
    computed in evaluation mode."""

    every: Annotated[int, Field(ge=1)]
    batches: Annotated[int, Field(ge=1)]


class TraceSpec(Frozen):
    """After the last step each rank writes a file of its own, with the last `steps` steps. The
    folder is made where it does not exist. workspace: the step before these measures, slowly, what
    each operator holds only while it runs; it must not be the job's first step."""

    folder: str
    steps: Annotated[int, Field(ge=1)]
    workspace: bool = False

    def file_of(self, rank: int) -> Path:
        return Path(self.folder) / f"rank{rank}.json"


class ProgramSpec(Frozen):
    """What every program of a job is given. device: its `server/index`. rail_interfaces: in the
    order of the cluster's rails, the same on every rank. threads: torch's number of threads; 0: a
    script's own choice.
    held_seconds: how long from its start it may run without a Hold; None: to its end."""

    rank: int
    world_size: int
    device: str
    master_address: str
    master_tcp_port: int
    rail_interfaces: tuple[RailInterface, ...]
    backend: Literal["gloo", "nccl"] = "gloo"
    threads: Annotated[int, Field(ge=0)] = 1
    held_seconds: Annotated[float, Field(ge=0)] | None = None


class ScriptSpec(ProgramSpec):
    """One server's part of a script, of `processes` processes; rank and world_size count servers,
    device is the server's first. rail_pattern: for each of gloo's contexts the index of its
    interface in rail_interfaces, the same on every server. rail_parts: which part of a large
    collective each of rail_interfaces carries; none: each collective is one rail's. cut_from_bytes:
    large is one whose tensors have so many bytes on each rank. python: the words before the
    script's own; none: this program's interpreter. fastest_bits_per_second: the rate of the fastest
    of its rails. environment: variables that the processes have and this program does not.
    loss_seconds: a rail that carries nothing of what the processes send for this long ends them."""

    kind: Literal["torchrun"] = "torchrun"
    script: str
    arguments: tuple[str, ...] = ()
    processes: Annotated[int, Field(ge=1)] = 1
    python: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    rail_pattern: tuple[int, ...]
    rail_parts: tuple[float, ...] = ()
    cut_from_bytes: Annotated[int, Field(ge=1)] = 1 << 18
    fastest_bits_per_second: Annotated[float, Field(ge=0)] = 0.0
    loss_seconds: float = 20.0


class RankSpec(ProgramSpec):
    """One rank of a placed or replayed job; or of a calibration, which has one rank on the first
    device of every server that has devices.

    Ranks are in the order of placement.devices_used. gloo's device k is rail k, and the tag of a
    part on rail k is k modulo the number of rails. model and graph_file: a placed job has a model,
    a replay a graph file, a calibration neither. bucket_files: by the names of other buckets than
    the first, which placement_file is of, their placements' files. bucket: the only one whose
    batches are trained, for a measurement; none: all. time_scale: multiplies operator
    times in a replay. sockets_per_rail: connections of a pair of ranks, per rail and direction.
    urgent_first: whether `job` sharing's send order is kept; without it messages leave as they are
    made. acknowledgement_dscp: of the acknowledgements of what comes over gloo; 0 marks none.
    timeout_seconds: how long ranks wait for each other before the first step; to import torch from
    a slow file server takes minutes. loss_seconds: a rank that gives no sign of life for this long,
    and with which no step begins meanwhile, is lost. wait_seconds: how long a living rank may keep
    another waiting within a step.
    """

    kind: Literal["placed", "replay", "calibrate"]
    placement_file: str
    bucket_files: Mapping[str, str] = {}
    bucket: str | None = None
    sockets_per_rail: Annotated[int, Field(ge=1, le=16)] = 1
    urgent_first: bool = True
    acknowledgement_dscp: Annotated[int, Field(ge=0, le=63)] = 0
    model: str | None = None
    graph_file: str | None = None
    batch: int = 1
    accumulate: int = 1
    shards: int = 1
    recompute: Literal["none", "half", "all"] = "none"
    autocast: Literal["bf16", "fp16"] | None = None
    optimizer: OptimizerSpec = OptimizerSpec()
    state: StateSpec | None = None
    steps: int
    seed: int = 0
    time_scale: float = 1.0
    checkpoint: CheckpointSpec | None = None
    validation: ValidationSpec | None = None
    trace: TraceSpec | None = None
    timeout_seconds: float = 540.0
    # A network that was gone for up to 20 s, as while a switch starts anew, must end no job. Nobody
    # is lost before TCP, which waits twice as long before each further try, has tried it again:
    # after 25.4 s, where an answer takes some milliseconds (job/supervision/heartbeat.py).
    loss_seconds: float = 30.0
    wait_seconds: float = 600.0

    @property
    def rails(self) -> tuple[str, ...]:
        """In the order of gloo's devices."""
        return tuple(rail.rail for rail in self.rail_interfaces)


_SPEC: TypeAdapter[RankSpec | ScriptSpec] = TypeAdapter(
    Annotated[RankSpec | ScriptSpec, Field(discriminator="kind")]
)


def parse_spec(document: str | bytes) -> RankSpec | ScriptSpec:
    """Raises pydantic.ValidationError where the document is not a specification."""
    return _SPEC.validate_json(document)


class Hold(Frozen):
    """The network is promised to stay as it is for held_seconds from now on."""

    held_seconds: float


class Started(Frozen):
    event: Literal["started"] = "started"
    rank: Count
    pid: Count
    structure_hash: str
    notes: tuple[Sentence, ...] = ()


class Resumed(Frozen):
    """From rank 0. step: the first step that runs now."""

    event: Literal["resumed"] = "resumed"
    rank: Count
    step: Count
    path: str
    notes: tuple[Sentence, ...] = ()


class Saved(Frozen):
    """From rank 0: a checkpoint after `step` steps is whole and on disk. bytes: of all ranks."""

    event: Literal["saved"] = "saved"
    rank: Count
    step: Count
    path: str
    bytes: Count
    seconds: Seconds


class Noted(Frozen):
    """What the user should know of the rank's work, in sentences."""

    event: Literal["noted"] = "noted"
    rank: Count
    notes: tuple[Sentence, ...]


class MeasuredPath(Frozen):
    """A message of n bytes from source to destination (servers), cut over `rails`, takes
    setup_seconds + 8 n / bits_per_second."""

    source: str
    destination: str
    rails: tuple[str, ...]
    setup_seconds: Seconds
    bits_per_second: Annotated[float, Field(gt=0, le=1e30)]


class Calibrated(Frozen):
    """What this rank measured as the source. left_out: how many further paths were not measured,
    because time ran out. message_seconds, message_seconds_per_byte: of its processor, for what it
    sent or took; None where ranks compute on GPUs, whose time this says nothing of.
    """

    event: Literal["calibrated"] = "calibrated"
    rank: Count
    paths: tuple[MeasuredPath, ...]
    left_out: Count = 0
    message_seconds: Seconds | None = None
    message_seconds_per_byte: Seconds | None = None


class StepDone(Frozen):
    """seconds: from the barrier before the step. load_seconds: how long the rank read the step's
    batch before that. loss, and metrics by their names: from the rank that computes them, where
    they are finite; non_finite_loss: of a loss that is not. bucket: of the step's batch, where the
    model has buckets. memory_bytes, processor_wait: step_memory_bytes and processor_wait (Finished)
    as far as is known, told every few seconds."""

    event: Literal["step"] = "step"
    rank: Count
    step: Count
    seconds: Seconds
    load_seconds: Seconds = 0.0
    loss: float | None = None
    non_finite_loss: NonFinite | None = None
    metrics: Annotated[Mapping[MetricName, float], Field(max_length=32)] = {}
    bucket: MetricName | None = None
    memory_bytes: Count | None = None
    processor_wait: Share | None = None


class Validated(Frozen):
    """After `step` steps, from the rank that computes the loss. batches: of how many the loss and
    the metrics are the means; fewer than the job asks for while the validation goes on. What is not
    finite is left out. seconds: since the validation began."""

    event: Literal["validated"] = "validated"
    rank: Count
    step: Count
    batches: Count
    seconds: Seconds
    loss: float | None = None
    metrics: Annotated[Mapping[MetricName, float], Field(max_length=32)] = {}


class Carried(Frozen):
    """Bytes that a script's server has sent on each rail since the script began, with headers."""

    event: Literal["carried"] = "carried"
    rank: Count
    seconds: Seconds
    sent_bytes: Mapping[str, Count]


class Traffic(Frozen):
    """Payload bytes that this rank sent over all steps, by destination device and rail."""

    destination: str
    rail: str
    bytes: Count


class Finished(Frozen):
    """peak_memory_bytes: the most that the process took at any time, capture included; of a script,
    the most that one of its processes took. program_memory_bytes: what the process holds between
    two steps beside parameters, buffers and optimizer state. step_memory_bytes: the most that its
    steps from the second on took beyond that. tensor_memory_bytes: what of that tensors had in use,
    read between operators of one step; the rest is what operators take while they run, and holes in
    the heap. The last three are GPU memory on a GPU, and None where fewer than two steps ran.
    processor_wait: which part of the time since the first step the rank waited for a processor;
    None where that is not known, and of a script."""

    event: Literal["finished"] = "finished"
    rank: Count
    traffic: tuple[Traffic, ...]
    peak_memory_bytes: Count
    step_memory_bytes: Count | None = None
    tensor_memory_bytes: Count | None = None
    program_memory_bytes: Count | None = None
    processor_wait: Share | None = None


class Failed(Frozen):
    """lost_rank: the rank whose loss is the cause, where it is not this rank."""

    event: Literal["failed"] = "failed"
    rank: Count
    what: Sentence
    remedy: Sentence = ""
    lost_rank: Count | None = None


RankEvent = (
    Started
    | Resumed
    | Calibrated
    | Carried
    | StepDone
    | Validated
    | Saved
    | Noted
    | Finished
    | Failed
)
_EVENT: TypeAdapter[RankEvent] = TypeAdapter(Annotated[RankEvent, Field(discriminator="event")])


def parse_rank_event(line: str | bytes) -> RankEvent:
    """Raises pydantic.ValidationError where the line is not an event."""
    return _EVENT.validate_json(line)
