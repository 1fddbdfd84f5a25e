"""Captures the training step that a model path names, ready to be placed."""

from __future__ import annotations

from dataclasses import replace

import torch

from placewire.optimizer.capture.buckets import of_bucket, only_bucket, with_buckets
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.inference import (
    forward_alone,
    in_half_precision,
    inference_graph,
    refuse_what_is_of_training,
)
from placewire.optimizer.capture.joint import joint_graph
from placewire.optimizer.capture.micro_batches import (
    refuse_what_does_not_split,
    split_batch,
)
from placewire.optimizer.capture.moving import on_device
from placewire.optimizer.capture.operators import analyse, operator_graph
from placewire.optimizer.capture.parameter_groups import require_all_used
from placewire.optimizer.capture.protocol import (
    DeviceType,
    ModelWithLoss,
    TrainingStep,
    bucket_of,
    load_training_step,
    shapes_of,
)
from placewire.optimizer.capture.recompute import dependent
from placewire.optimizer.capture.recomputed_layers import note_layers
from placewire.optimizer.capture.refusals import refuse_what_cannot_run
from placewire.optimizer.capture.rewrite import placeable
from placewire.optimizer.capture.sources import source_digests
from placewire.optimizer.capture.state import state_names
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.validation import validation_graph
from placewire.optimizer.capture.variants import Autocast, Recompute
from placewire.optimizer.capture.whole_batch import what_needs_the_whole_batch
from placewire.optimizer.capture.written_out import refuse_what_is_not_written_out
from placewire.optimizer.collector import collector_paused


def capture(
    model: str,
    batch: int,
    optimizer: OptimizerChoice,
    seed: int,
    accumulate: int = 1,
    autocast: Autocast | None = None,
    device_type: DeviceType = "cpu",
    shards: int = 1,
    recompute: Recompute = "none",
) -> CapturedStep:
    """Captures the step as captured_step() does, of options that are given one by one."""
    return captured_step(
        CaptureOptions(
            model,
            batch,
            optimizer,
            seed,
            accumulate=accumulate,
            autocast=autocast,
            device_type=device_type,
            shards=shards,
            recompute=recompute,
        )
    )


def captured_step(options: CaptureOptions) -> CapturedStep:
    """Imports the model, builds it under the seed, and captures its step, with all buckets.

    Two processes with the same options, torch and sources get the same operators
    (`operators.structure_hash`) and the same initial parameters. Raises CaptureError.
    """
    return captured_with_buckets(built_step(options), options)


def captured_with_buckets(step: TrainingStep, options: CaptureOptions) -> CapturedStep:
    """Does what captured_step() does for a step that is built already, on real or on fake
    tensors."""
    if options.bucket is not None:
        return captured_from(only_bucket(step, options.bucket, options.model), options)
    first = captured_from(step, options)
    others = [name for name in step.buckets if name != first.bucket]
    if not others:
        return first
    captured = {
        name: captured_from(of_bucket(step, name, options.model), options) for name in others
    }
    return with_buckets(first, captured, options.model)


def built_step(options: CaptureOptions) -> TrainingStep:
    """Returns the model's step on its device. Raises CaptureError."""
    if options.device_type == "cuda" and not torch.cuda.is_available():
        raise CaptureError(
            f"{options.model} is to run on a CUDA device, but this machine has none, or its torch "
            "is built without CUDA"
        )
    step = load_training_step(options.model, options.batch, options.seed)
    return step if options.device_type == "cpu" else on_device(step, torch.device("cuda"))


@collector_paused()
def captured_from(step: TrainingStep, options: CaptureOptions) -> CapturedStep:
    """Captures the bucket of the step's example_inputs alone, where it has several."""
    if options.inference:
        refuse_what_is_of_training(options)
        step = forward_alone(step)
        step = in_half_precision(step) if options.half else step
    elif options.decompose:
        refuse_what_is_not_written_out(options.optimizer)
    where, accumulate, optimizer = options.model, options.accumulate, options.optimizer
    module = step.model if step.loss is None else ModelWithLoss(step.model, step.loss)
    refuse_what_does_not_split(step.example_inputs, options.batch, accumulate, where)
    count, inputs = len(step.example_inputs), split_batch(step.example_inputs, accumulate)
    example = inputs[:count]
    bucket = bucket_of(step, step.example_inputs) or ""
    if options.inference:
        joint = inference_graph(module, example, where, options)
    else:
        joint = joint_graph(module, example, where, options.autocast, options.decompose)
    refuse_what_cannot_run(joint, where)
    whole = what_needs_the_whole_batch(joint)
    note_layers(joint.graph, options.recompute, dependent(joint.graph, joint.tangents), where)
    code = placeable(joint, optimizer, accumulate, count, options.shards, options.decompose)
    evaluated = None
    if step.validation is not None and not options.decompose:
        evaluated = validation_graph(module, example, code, where, options.autocast)
        code = replace(
            code,
            constants={**code.constants, **evaluated.constants},
            constant_names={**code.constant_names, **evaluated.constant_names},
        )
    require_all_used(optimizer.groups, code.trained)
    analysis = analyse(code)
    notes = {
        "model": options.model,
        "batch": options.batch,
        "accumulate": accumulate,
        "shards": options.shards,
        "recompute": options.recompute,
        "whole_batch": whole,
        "autocast": options.autocast,
        "optimizer": optimizer.signature,
        "loss": code.loss,
        "validation": evaluated is not None,
        "inputs": sorted(code.inputs, key=code.inputs.__getitem__),
        "parameter_bytes": sum(value.nbytes for value in code.parameters.values()),
        "sources": source_digests(),
    }
    name = f"{where} batch {options.batch}"
    if options.inference:
        del notes["loss"], notes["optimizer"]
        notes |= {"inference": True, "outputs": [*code.outputs]}
        name += " inference"
        if options.half:
            notes |= {"half": True}
            name += " in half precision"
    if options.decompose:
        notes |= {"decompose": True}
        name += " decomposed"
    if bucket:
        notes |= {"bucket": bucket, "buckets": [*step.buckets]}
        name += f" bucket {bucket}"
    if joint.kept is not None:
        notes |= {"kept": joint.kept}
    root = "model." if step.loss is None else ""  # ModelWithLoss adds it otherwise
    captured = CapturedStep(
        optimizer=optimizer,
        seed=options.seed,
        operators=operator_graph(code, analysis, optimizer, name, notes, root),
        code=code,
        analysis=analysis,
        batches=lambda number: split_batch(step.batches(number), accumulate),
        names=state_names(step, code),
        shapes=shapes_of(inputs),
        bucket=bucket,
    )
    if evaluated is None or (validation := step.validation) is None:
        return captured
    found = analyse(evaluated)
    forward = replace(
        captured,
        operators=operator_graph(evaluated, found, optimizer, f"{name}, validation", {}, root),
        code=evaluated,
        analysis=found,
        batches=lambda number: split_batch(validation(number), accumulate),
    )
    return replace(captured, validation=forward)
