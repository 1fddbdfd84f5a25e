"""Runs one rank of a placed or replayed job, from its specification to its last step."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import (
    Finished,
    NonFinite,
    Noted,
    RankEvent,
    RankSpec,
    Started,
    StepDone,
    Traffic,
)
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessages, of_all, rank_messages
from placewire.job.placed.buckets import Buckets
from placewire.job.placed.checkpoint import Checkpoints
from placewire.job.placed.clocked import ClockedStep
from placewire.job.placed.device import use_device
from placewire.job.placed.heap_reading import HeapReading
from placewire.job.placed.initial_state import load_initial_state
from placewire.job.placed.losses import Losses, non_finite
from placewire.job.placed.processor_waits import ProcessorWaits
from placewire.job.placed.recorder import Recorder
from placewire.job.placed.replay import payload_for, replay_actions, replay_step
from placewire.job.placed.resume import Beginning, begin
from placewire.job.placed.state import job_manifest, rank_state
from placewire.job.placed.told_progress import ToldProgress
from placewire.job.placed.validation import Validation
from placewire.job.supervision.heartbeat import Heart, Lost, limit_tcp_waits
from placewire.job.transport.backend import backend_notes, transport_of
from placewire.job.transport.connecting import connect
from placewire.job.transport.nccl_environment import BEFORE_CUDA
from placewire.job.transport.rendezvous import open_store, report_failure, tell_loading
from placewire.job.transport.transport import Alone, Transport
from placewire.optimizer.capture.allocations import weigh, workspace_bytes
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.memory import MemoryMeter
from placewire.optimizer.capture.metrics import LOSS
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.protocol import DeviceType, Tensors
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.placement import Placement, load_placement

Emit = Callable[[RankEvent], None]
Scalars = Mapping[str, torch.Tensor]

# Reading memory and waits takes 0.1 ms, which each step of a small model would feel.
_TELL_USE_SECONDS = 5.0


@dataclass(frozen=True)
class Program:
    """load(step) returns a step's data, timed apart. begin_step(step) returns when all ranks have
    loaded theirs. run(data) runs the step and returns those scalars by name that this rank reports.
    recorder: told of each step. checkpoints: where the job keeps any. notes: what the user should
    know of the start. held_bytes(): of what stays between steps.
    """

    structure_hash: str
    load: Callable[[int], Tensors]
    begin_step: Callable[[int], object]
    run: Callable[[Tensors], Scalars]
    recorder: Recorder
    checkpoints: Checkpoints | None = None
    notes: tuple[str, ...] = ()
    # Of the step that was loaded last: its bucket, where the model has several, and whether that
    # is the first.
    bucket: Callable[[], str | None] = lambda: None
    is_first_bucket: Callable[[], bool] = lambda: True
    # Of other buckets, and of validations.
    other_messages: tuple[RankMessages, ...] = ()
    # Gives parameters the values that they begin with, and says what it did.
    begin: Callable[[ToldProgress], str] = lambda progress: ""
    held_bytes: Callable[[], int] = lambda: 0
    # Makes what reads the heap during a step of the first bucket; it gets the function that reads.
    heap_reading: Callable[[Callable[[], int]], HeapReading] | None = None
    device_type: str = "cpu"
    validation: Validation | None = None


def run_rank(spec: RankSpec, emit: Emit, on_lost: Lost) -> None:
    """on_lost: ends this process where another rank is lost. Raises ValueError (JobError,
    CaptureError, GraphError, PlacementError) or OSError.

    Never hangs: every wait has a time limit from the specification, and a lost peer ends the rank.
    """
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(1)
    if spec.backend == "nccl":
        os.environ.update(BEFORE_CUDA)
    placement = load_placement(Path(spec.placement_file))
    used = placement.devices_used
    if len(used) != spec.world_size or used[spec.rank] != spec.device:
        raise JobError(
            f"rank {spec.rank} of {spec.world_size} is to be {spec.device}; the placement uses "
            f"{', '.join(used)} in this order"
        )
    messages = rank_messages(placement, spec.device, spec.rails, spec.sockets_per_rail)
    if spec.world_size == 1:
        alone = Alone()
        program, beginning = _prepare(spec, placement, messages, alone, None, emit)
        _run_steps(spec, program, beginning, alone, emit)
        return
    store = open_store(spec)
    heart = Heart(spec, on_lost)
    heart.start()
    transport = transport_of(spec, placement, messages)
    transport.met = heart.met
    try:
        program, beginning = _prepare(spec, placement, messages, transport, store, emit)
    except (ValueError, OSError) as error:
        report_failure(store, spec.rank, str(error))
        raise
    transport.expect(of_all([messages, *program.other_messages]))
    connect(spec, placement, transport, store)
    transport.expect(messages)
    if program.checkpoints is not None:
        wait = timedelta(seconds=spec.wait_seconds)
        program.checkpoints.join(dist.new_group(timeout=wait, backend="gloo"))
    limit_tcp_waits(spec.loss_seconds)
    _run_steps(spec, program, beginning, transport, emit)
    heart.finish()


def _prepare(
    spec: RankSpec,
    placement: Placement,
    messages: RankMessages,
    transport: Transport,
    store: TCPStore | None,
    emit: Emit,
) -> tuple[Program, Beginning]:
    make = _placed if spec.kind == "placed" else _replayed
    program = make(spec, placement, messages, transport)
    emit(
        Started(
            rank=spec.rank,
            pid=os.getpid(),
            structure_hash=program.structure_hash,
            notes=(*backend_notes(spec), *program.notes),
        )
    )
    beginning = Beginning()

    def tell(size: str) -> None:
        told = f"{size} of what the job begins with are loaded so far"
        emit(Noted(rank=spec.rank, notes=(told,)))

    def loaded(total_bytes: int) -> None:
        if store is not None:
            tell_loading(store, spec.rank, total_bytes)

    progress = ToldProgress(tell, loaded)
    if program.checkpoints is not None:
        beginning = begin(spec, program.checkpoints, store, progress)
        if beginning.resumed is not None:
            emit(beginning.resumed)
        _emit_notes(spec, program.checkpoints, emit)
    if beginning.step == 0 and (told := program.begin(progress)) and spec.rank == 0:
        emit(Noted(rank=spec.rank, notes=(told,)))
    return program, beginning


def _emit_notes(spec: RankSpec, checkpoints: Checkpoints, emit: Emit) -> None:
    if notes := checkpoints.take_notes():
        emit(Noted(rank=spec.rank, notes=notes))


def capture_options(spec: RankSpec, device_type: DeviceType) -> CaptureOptions:
    """What the rank captures. Raises JobError, CaptureError."""
    if spec.model is None:
        raise JobError("a placed job needs a model")
    return CaptureOptions(
        spec.model,
        spec.batch,
        OptimizerChoice.of(spec.optimizer.model_dump()),
        spec.seed,
        accumulate=spec.accumulate,
        autocast=spec.autocast,
        device_type=device_type,
        shards=spec.shards,
        recompute=spec.recompute,
        bucket=spec.bucket,
    )


def _placed(
    spec: RankSpec, placement: Placement, messages: RankMessages, transport: Transport
) -> Program:
    device_type = use_device(spec, placement)
    asked = capture_options(spec, device_type)
    others = spec.rank == 0 and spec.checkpoint is not None
    part = capture_part(asked, wanted=placement.order[spec.device], others=others)
    captured = part.step
    recorder = Recorder(spec, placement)
    watched = recorder.around(transport)
    buckets = Buckets(spec, placement, captured, messages, transport, watched)
    rank_program = buckets.first
    clocked = ClockedStep(rank_program, recorder, device_type)

    def run(inputs: Tensors) -> Scalars:
        reported: Scalars
        if recorder.weighing:
            reported, peaks = weigh(rank_program.module, clocked.ends, inputs, device_type)
            found = workspace_bytes(captured, peaks).tolist()
            recorder.workspace_bytes = dict(zip(captured.operators.ids, found, strict=True))
            return reported
        module = clocked.run if recorder.on else buckets.program.module
        reported = module(*inputs)
        if device_type == "cuda":
            torch.cuda.synchronize()
        return reported

    checkpoints = None
    state = rank_state(captured, rank_program, is_first=others)
    if spec.checkpoint is not None:
        job = job_manifest(spec, placement, captured)
        checkpoints = Checkpoints(spec.checkpoint, spec.rank, job, state)

    validation = None
    if spec.validation is not None:
        validation = Validation(spec, captured, buckets, transport)

    def begin(progress: ToldProgress) -> str:
        asked = spec.state
        return "" if asked is None else load_initial_state(asked, captured, state, progress)

    notes = (part.note,) if part.note else ()
    of_validation = () if validation is None else tuple(validation.messages.values())
    return Program(
        captured.operators.structure_hash,
        buckets.load,
        lambda step: buckets.begin_step(buckets.bucket, f"batches({step})"),
        run,
        recorder,
        checkpoints,
        notes,
        begin=begin,
        bucket=lambda: buckets.bucket or None,
        is_first_bucket=lambda: buckets.program is rank_program,
        other_messages=(*buckets.messages.values(), *of_validation),
        held_bytes=lambda: buckets.held_bytes,
        heap_reading=lambda in_use: HeapReading(rank_program, in_use),
        device_type=device_type,
        validation=validation,
    )


def _replayed(
    spec: RankSpec, placement: Placement, messages: RankMessages, transport: Transport
) -> Program:
    if spec.graph_file is None:
        raise JobError("a replayed job needs a graph file")
    graph = load_graph(Path(spec.graph_file))
    actions = replay_actions(graph, placement, spec.device, messages, spec.time_scale)
    payload = payload_for(actions)
    recorder = Recorder(spec, placement)
    watched = recorder.around(transport)

    def run(inputs: Tensors) -> Scalars:
        replay_step(actions, watched, payload, recorder)
        return {}

    return Program(
        graph.structure_hash, lambda step: (), lambda step: transport.begin_step(), run, recorder
    )


def _numbers(reported: Scalars) -> tuple[float | None, NonFinite | None, dict[str, float]]:
    """Returns the loss where it is finite, what it is where it is not, and the metrics that are
    finite."""
    numbers = {name: float(value) for name, value in reported.items()}
    finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
    kind = non_finite(numbers.get(LOSS, 0.0))
    return finite.pop(LOSS, None), kind, finite


def _run_steps(
    spec: RankSpec, program: Program, beginning: Beginning, transport: Transport, emit: Emit
) -> None:
    checkpoints, validation = program.checkpoints, program.validation
    meter, reading = MemoryMeter(program.device_type), None
    waits, use_told = ProcessorWaits(), -math.inf
    losses = Losses(spec, beginning)

    def tell(note: str) -> None:
        emit(Noted(rank=spec.rank, notes=(note,)))

    with torch.no_grad():
        for step in range(beginning.step, spec.steps):
            began = time.perf_counter()
            data = program.load(step)
            load_seconds = time.perf_counter() - began
            program.begin_step(step)
            start = time.perf_counter()
            program.recorder.begin(step, start)
            if reading is None or program.recorder.is_needed or not program.is_first_bucket():
                reported = program.run(data)
            else:
                reported, most = reading.run(*data)
                meter.after_reading(most)
                reading = None
            transport.end_step()
            finish = time.perf_counter()
            program.recorder.end(finish)
            loss, odd_loss, metrics = _numbers(reported)
            memory = waited = None
            if finish - use_told >= _TELL_USE_SECONDS:
                memory, waited, use_told = meter.step_bytes, waits.share, finish
            emit(
                StepDone(
                    rank=spec.rank,
                    step=step,
                    seconds=finish - start,
                    load_seconds=load_seconds,
                    loss=loss,
                    non_finite_loss=odd_loss,
                    metrics=metrics,
                    bucket=program.bucket(),
                    memory_bytes=memory,
                    processor_wait=waited,
                )
            )
            losses.after(step, loss, odd_loss, tell)
            del data, reported
            if step == beginning.step and step + 1 < spec.steps:
                if program.heap_reading is not None and meter.heap_in_use is not None:
                    reading = program.heap_reading(meter.heap_in_use)
                meter.after_first_step(program.held_bytes())
                waits.after_first_step()
            if checkpoints is not None and checkpoints.is_due(step + 1, spec.steps):
                saved = checkpoints.try_to_save(step + 1, spec.steps, tell, losses.last_finite_step)
                if saved is not None:
                    emit(saved)
                _emit_notes(spec, checkpoints, emit)
            if validation is not None and validation.is_due(step + 1):
                validation.run(step + 1, emit)
    waited = waits.share
    if checkpoints is not None:
        checkpoints.close()
    transport.close()
    try:
        program.recorder.write(program.structure_hash)
    except OSError as error:  # All steps are done.
        emit(Noted(rank=spec.rank, notes=(f"its trace is not written: {error}",)))
    emit(_finished(spec, transport, meter, waited))


def _finished(
    spec: RankSpec, transport: Transport, meter: MemoryMeter, waited: float | None
) -> Finished:
    traffic = tuple(
        Traffic(destination=destination, rail=rail, bytes=count)
        for (destination, rail), count in sorted(transport.sent_bytes.items())
    )
    return Finished(
        rank=spec.rank,
        traffic=traffic,
        peak_memory_bytes=meter.process_peak_bytes,
        step_memory_bytes=meter.step_bytes,
        tensor_memory_bytes=meter.tensor_bytes,
        program_memory_bytes=meter.program_bytes,
        processor_wait=waited,
    )
