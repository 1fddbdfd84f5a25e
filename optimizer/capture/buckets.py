"""Buckets: the few shapes that batches of one step may have, each captured as a graph of its own.

All buckets train the same parameters. Each of the other buckets reads and writes those of the first
one, under the same operator ids, in the same shards and replicas; so a rank that holds one for the
first bucket has it for the others, with its optimizer state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.protocol import Tensors, TrainingStep, bucket_of

_NAMED = 3
# Of the batches among which those of one bucket are looked for.
_MOST_READ = 10_000


def of_bucket(step: TrainingStep, name: str | None, model_path: str) -> TrainingStep:
    """Returns the step of that bucket alone, whose every batch is the bucket's example; None: of
    the first one, or the step itself where it has no buckets. Raises CaptureError."""
    if name is None and not step.buckets:
        return step
    name = name or next(iter(step.buckets))
    if name not in step.buckets:
        known = ", ".join(map(repr, step.buckets)) or "none"
        raise CaptureError(f"{model_path} has no bucket {name!r}; it has {known}")
    example = step.buckets[name]
    return replace(
        step,
        example_inputs=example,
        batches=lambda number: tuple(tensor.clone() for tensor in example),
    )


def only_bucket(step: TrainingStep, name: str, model_path: str) -> TrainingStep:
    """Returns the step of that bucket alone, with those of its batches that are of this bucket.
    Raises CaptureError."""

    # The numbers of the bucket's batches among those that were read, so that each is read once.
    known: list[int] = []
    unread = iter(range(_MOST_READ))

    def batches(number: int) -> Tensors:
        if number < len(known):
            return step.batches(known[number])
        for k in unread:
            batch = step.batches(k)
            if bucket_of(step, batch) == name:
                known.append(k)
                if len(known) > number:
                    return batch
        raise CaptureError(
            f"{model_path}: of the first {_MOST_READ} batches fewer than {number + 1} are of "
            f"bucket {name!r}"
        )

    return replace(of_bucket(step, name, model_path), batches=batches)


def shares_of(step: TrainingStep, steps: int, most: int) -> Mapping[str, float]:
    """Returns which part of the batches each bucket has, by name, first the first bucket; counted
    over at most so many steps, drawn from all. Raises CaptureError where a batch is of no
    bucket."""
    drawn = sorted(random.Random(0).sample(range(steps), min(steps, most)))
    counted = [bucket_of(step, step.batches(number)) for number in drawn]
    return {name: counted.count(name) / len(counted) for name in step.buckets}


def with_buckets(
    first: CapturedStep, others: Mapping[str, CapturedStep], model_path: str
) -> CapturedStep:
    """Returns the first bucket with the others, which then have its values. Their constants, which
    each captured for itself, are among its own. Raises CaptureError where one trains anything
    else."""
    constants, constant_names = dict(first.code.constants), dict(first.code.constant_names)
    saved_names = dict(first.names.constants)
    sharing: dict[str, CapturedStep] = {}
    for k, (name, one) in enumerate(others.items()):
        require_same_state(first, one, model_path)
        held = {exported: constant for constant, exported in constant_names.items()}
        renamed = {
            own: held.get(one.code.constant_names.get(own, ""), f"bucket_{k}_{own}")
            for own in one.code.constants
        }
        for own, constant in renamed.items():
            if constant not in constants:
                constants[constant] = one.code.constants[own]
                if own in one.code.constant_names:
                    constant_names[constant] = one.code.constant_names[own]
                    saved_names[constant] = one.names.constants[own]
        sharing[name] = _with_constants(one, renamed, constants)
    code = replace(first.code, constants=constants, constant_names=constant_names)
    names = replace(first.names, constants=saved_names)
    return replace(first, buckets=sharing, names=names).with_values(code)


def _with_constants(
    one: CapturedStep, renamed: Mapping[str, str], constants: Mapping[str, torch.Tensor]
) -> CapturedStep:
    """Gives the constants their new names, in the graph, too, which is changed in place."""
    code = one.code
    for node in code.graph.find_nodes(op="get_attr"):
        node.target = renamed[str(node.target)]
    validation = one.validation
    if validation is not None:
        validation = _with_constants(validation, renamed, constants)
    return replace(
        one,
        code=replace(
            code,
            constants={renamed[own]: constants[renamed[own]] for own in code.constants},
            constant_names={renamed[own]: name for own, name in code.constant_names.items()},
        ),
        validation=validation,
    )


def require_same_state(first: CapturedStep, one: CapturedStep, model_path: str) -> None:
    """Raises CaptureError where the two hold, or write, different parameters or buffers."""
    ours, theirs = _state(first), _state(one)
    told = []
    if missing := ours.keys() - theirs.keys():
        told.append(f"it does not read {_some(missing)}")
    if more := theirs.keys() - ours.keys():
        told.append(f"{first.bucket!r} does not read {_some(more)}")
    if unlike := {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}:
        told.append(f"{_some(unlike)} is read or written in other parts or another layout")
    if told:
        raise CaptureError(
            f"{model_path}: bucket {one.bucket!r} does not train what {first.bucket!r} trains: "
            f"{'; '.join(told)}. Every bucket must read and write the same parameters and buffers, "
            "or else their gradients, and what their optimizers do, would depend on the order of "
            "the buckets"
        )


def _state(step: CapturedStep) -> Mapping[str, object]:
    """By operator id what a parameter or buffer is, and whether the step writes it."""
    written = set(step.code.writers.values())
    return {
        identifier: (parts, step.layouts[identifier], identifier in written)
        for identifier, parts in step.names.of.items()
    }


def _some(names: set[str]) -> str:
    some = sorted(names)
    more = len(some) - _NAMED
    return ", ".join(some[:_NAMED]) + (f" and {more} more" if more > 0 else "")
