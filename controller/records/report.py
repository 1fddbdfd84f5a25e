"""The report of a run: what was promised, predicted and measured. Pure."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.errors import PlacewireError
from placewire.controller.records.batch_reading import about_batches
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.nic_use import NicUse
from placewire.controller.records.of_buckets import BucketRow, bucket_rows, weighted, weights
from placewire.controller.records.of_steps import ValidationRow, typical_step, validation_rows
from placewire.controller.records.of_traffic import TrafficRow, traffic_rows
from placewire.controller.records.processor_waits import about_waits
from placewire.controller.records.program import ProgramRow
from placewire.controller.records.told_steps import believed
from placewire.frozen import Frozen
from placewire.job.contract.specification import Finished, Resumed, Saved, Sentence

if TYPE_CHECKING:
    from pathlib import Path

    from placewire.optimizer.allocation import Allocation
    from placewire.optimizer.placement import Placement


# Agents' and ranks' texts are cut to this length, so that every run's report can be made.
_LONGEST_FAILURE = 500_000
NetworkAfter = Literal["restored", "kept", "not restored"]
# Begins the note of what the network was given back without.
NOT_AS_BEFORE = "not as it was before: "


class CalibratedRow(Frozen):
    """What a message between two servers costs through the job's own backend: setup_seconds, then
    its bytes at bits_per_second. rail: `a+b` where the backend uses both at once. planned,
    promised: what the prediction counts on; None where it has no rate for this path."""

    source: str
    destination: str
    rail: str
    planned_setup_seconds: float
    setup_seconds: float
    promised_bits_per_second: float | None
    bits_per_second: float


class SharingRow(Frozen):
    """One sharing that was considered, with its rails and its predicted step."""

    sharing: str
    rails: tuple[str, ...]
    step_seconds: float
    bound_seconds: float
    devices: int
    chosen: bool


class RailRow(Frozen):
    """What a script's server sent on one rail, all headers counted. share: of all that it sent.
    within_tolerance: None where the server sent too little to be judged by."""

    server: str
    rail: str
    nic: str
    sent_bytes: int
    share: float
    planned_share: float
    within_tolerance: bool | None


class CheckpointRow(Frozen):
    """step: how many steps were done before the checkpoint."""

    step: int
    path: str


class FailureRow(Frozen):
    """How the run failed: its job, or afterwards its network. rank: the rank to blame; None where
    no rank is."""

    rank: int | None
    server: str
    what: str
    remedy: str


class RunReport(Frozen):
    """changes: by server, how many its network needed; changed: of what, such as `add queues`.
    Seconds are of one training step, which takes as long as its slowest rank, and which every rank
    ended in this run. program: None in a former release's report, and where no job was asked for.
    measured_step_seconds is the median of all steps but the first, which warms
    up caches and connections; of one step alone it is that step; of none there is none.
    steps: how many there were; None in a former release's report. step_seconds, which is empty
    where no time is to be believed, losses, and metrics by name begin with step first_step, which
    is not 0 where the job was resumed; a loss or metric that is not finite is None. steps_each: of
    how many steps each number in these is, 1 but in a long run: of step_seconds the longest of
    them, of the others the first; the median is of the first ones, too. checkpoint: the last whole
    one. failure: None where the run came to its end. files: paths of the run's graph,
    placement and, if there is one, trace. allocation_digest: of the bandwidth in the placement's
    file, which another search may have replaced since; None for a script and in a former release's
    report. A script that places itself has no operators and no prediction; rails says how it used
    its NICs. nic_use: None in a former release's report, and of a job that was too short.
    processor_waits: by device, which part of its time the rank waited for a processor. notes: what
    else is to be known of this report, in sentences. buckets: of a job whose batches have
    several shapes; predicted, bound and measured step are then means over them, of which the
    measured one leaves out each bucket's first step."""

    version: Literal[1] = 1
    plan_name: str
    plan_digest: str
    ended_unix_seconds: float | None = None
    program: ProgramRow | None = None
    generations: Mapping[str, int]
    changes: Mapping[str, int]
    changed: Mapping[str, Mapping[str, int]] = {}
    engine: str | None = None
    sharing: str
    operators: int = 0
    devices: tuple[str, ...] = ()
    server_pairs: tuple[tuple[str, str], ...] = ()
    considered: tuple[SharingRow, ...] = ()
    predicted_step_seconds: float | None = None
    bound_seconds: float | None = None
    gap: float | None = None
    single_device_seconds: float | None = None
    links: tuple[LinkMeasurement, ...]
    rails: tuple[RailRow, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    calibrated: tuple[CalibratedRow, ...] = ()
    first_step: int = 0
    resumed: CheckpointRow | None = None
    checkpoint: CheckpointRow | None = None
    failure: FailureRow | None = None
    steps: int | None = None
    steps_each: int = 1
    step_seconds: tuple[float, ...] = ()
    measured_step_seconds: float | None = None
    losses: tuple[float | None, ...] = ()
    nic_use: NicUse | None = None
    metrics: Mapping[str, tuple[float | None, ...]] = {}
    validations: tuple[ValidationRow, ...] = ()
    traffic: tuple[TrafficRow, ...] = ()
    peak_memory_bytes: Mapping[str, int] = {}
    processor_waits: Mapping[str, float] = {}
    network: NetworkAfter
    stage_seconds: Mapping[str, float]
    files: Mapping[str, str]
    allocation_digest: str | None = None
    notes: tuple[Sentence, ...] = ()

    @property
    def steps_run(self) -> int:
        return len(self.step_seconds) if self.steps is None else self.steps

    @property
    def prediction_error(self) -> float | None:
        """(measured - predicted) / predicted"""
        if self.measured_step_seconds is None or self.predicted_step_seconds is None:
            return None
        return self.measured_step_seconds / self.predicted_step_seconds - 1


def allocation_digest(allocation: Allocation) -> str:
    """Returns the digest of all that the allocation's promises are made from."""
    said = [
        allocation.cluster.digest,
        allocation.sharing,
        allocation.floor,
        sorted(allocation.rates_bits_per_second),
        sorted(allocation.talks),
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _checkpoint(event: Resumed | Saved) -> CheckpointRow:
    return CheckpointRow(step=event.step, path=event.path)


def failure_row(failure: BaseException) -> FailureRow:
    if isinstance(failure, PlacewireError):
        rank, told = getattr(failure, "rank", None), (failure.where, failure.what, failure.remedy)
        server, what, remedy = map(_kept, told)
        return FailureRow(rank=rank, server=server, what=what, remedy=remedy)
    interrupted = isinstance(failure, asyncio.CancelledError)
    what = "interrupted" if interrupted else f"{type(failure).__name__}: {failure}"
    return FailureRow(rank=None, server="", what=_kept(what), remedy="")


def _kept(text: str) -> str:
    whole = text.encode(errors="backslashreplace").decode()
    return whole if len(whole) <= _LONGEST_FAILURE else f"{whole[:_LONGEST_FAILURE]}…"


def sharing_rows(considered: Sequence[Placement], chosen: Placement) -> tuple[SharingRow, ...]:
    return tuple(
        SharingRow(
            sharing=p.sharing,
            rails=p.cluster.rails,
            step_seconds=p.step_seconds,
            bound_seconds=p.bound_seconds,
            devices=len(p.devices_used),
            chosen=p is chosen,
        )
        for p in considered
    )


def of_placed(
    report: RunReport,
    placement: Placement,
    compared: Sequence[Placement],
    files: Mapping[str, Path],
    told: JobRecord,
    buckets: Mapping[str, Placement] | None = None,
    shares: Mapping[str, float] | None = None,
) -> RunReport:
    """Adds what was predicted for a placed job, and what its ranks told. buckets, shares: the
    placements of a job whose batches have several shapes, and how often each is expected."""
    devices, steps = placement.devices_used, told.steps
    good, notes = believed(steps.told_times(), devices, report.stage_seconds.get("job"))
    resumed = None if told.resumed is None else _checkpoint(told.resumed)
    saved = None if told.saved is None else _checkpoint(told.saved)
    first_step = resumed.step if resumed else 0
    done = steps.done(first_step)
    times = steps.seconds(done, good)
    whole = len(done) > 0 and len(told.finished) == len(devices)
    rows = bucket_rows(buckets or {}, shares or {}, steps, done, times)
    mixed = [((buckets or {})[name], part) for name, part in weights(rows).items()]
    of_buckets = {"buckets": rows, **_over_buckets(rows)} if rows else {}
    made = report.model_copy(
        update={
            "engine": placement.engine,
            "operators": len(placement.operators),
            "devices": devices,
            "server_pairs": tuple(sorted(placement.server_pairs)),
            "considered": sharing_rows(compared, placement),
            "predicted_step_seconds": placement.step_seconds,
            "bound_seconds": placement.bound_seconds,
            "gap": placement.gap,
            "single_device_seconds": placement.best_single_device_seconds,
            "steps": len(done),
            "steps_each": steps.steps_each,
            "step_seconds": steps.longest(done, good),
            "measured_step_seconds": typical_step(times),
            "losses": steps.losses(done),
            "metrics": steps.metrics(done),
            "validations": validation_rows(told.validations),
            "first_step": first_step,
            "resumed": resumed,
            "checkpoint": saved or resumed,
            "traffic": traffic_rows(placement, told.finished.values(), len(done), mixed)
            if whole
            else (),
            "peak_memory_bytes": _peaks(devices, told.finished.values()),
            "processor_waits": {devices[k]: part for k, part in told.processor_waits.items()},
            "files": {name: str(file) for name, file in files.items()},
            "allocation_digest": allocation_digest(placement),
            "notes": (
                *report.notes,
                *notes,
                *about_batches(steps.load_seconds(done, good), times, devices),
            ),
            **of_buckets,
        }
    )
    waited = about_waits(made.processor_waits, made.prediction_error)
    return made.model_copy(update={"notes": (*made.notes, *waited)})


def _over_buckets(rows: Sequence[BucketRow]) -> dict[str, float | None]:
    predicted, bound = weighted(rows, "predicted_step_seconds"), weighted(rows, "bound_seconds")
    assert predicted is not None and bound is not None, "each bucket has them"
    return {
        "predicted_step_seconds": predicted,
        "bound_seconds": bound,
        "gap": max(0.0, 1.0 - bound / predicted) if predicted > 0 else 0.0,
        "single_device_seconds": weighted(rows, "single_device_seconds"),
        "measured_step_seconds": weighted(rows, "measured_step_seconds")
        if any(row.steps for row in rows)
        else None,
    }


def of_script(
    report: RunReport,
    servers: Sequence[str],
    rails: tuple[RailRow, ...],
    allocation_file: Path,
    told: JobRecord,
) -> RunReport:
    """Adds how a script used the network. servers: by rank."""
    return report.model_copy(
        update={
            "rails": rails,
            "peak_memory_bytes": _peaks(servers, told.finished.values()),
            "files": {"allocation": str(allocation_file)},
        }
    )


def _peaks(names: Sequence[str], finished: Iterable[Finished]) -> dict[str, int]:
    return {names[event.rank]: event.peak_memory_bytes for event in finished}
