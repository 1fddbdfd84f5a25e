"""Captures a step with the values of only a part of the model, in memory for that part."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.deferred import NotRepeatableError, Recording, is_fake, recorded
from placewire.optimizer.capture.errors import CaptureError, one_line, user_location
from placewire.optimizer.capture.step import built_step, captured_step, captured_with_buckets
from placewire.optimizer.collector import collector_paused


@dataclass(frozen=True)
class CapturedPart:
    """step: only the wanted parameters and buffers have values. note: why the whole model was built
    all the same, which takes memory for all of it for a moment; empty where it was not."""

    step: CapturedStep
    note: str = ""


def capture_part(options: CaptureOptions, *, wanted: Collection[str], others: bool) -> CapturedPart:
    """Captures the step as captured_step() does, with the same values, but only of operators in
    `wanted`.

    others: whether StateNames.others have values too. Raises CaptureError.
    """
    try:
        with collector_paused():
            step, recording = recorded(lambda: built_step(options))
        captured = captured_with_buckets(step, options)
        given = [captured.batches(0)]
        if captured.validation is not None:
            given.append(captured.validation.batches(0))
        if any(is_fake(tensor) for batch in given for tensor in batch):
            raise NotRepeatableError("batches are made of tensors that the function made")
        return CapturedPart(_with_values(captured, recording, set(wanted), others))
    except NotRepeatableError as error:
        why = str(error)
    except CaptureError as error:
        # An error of the model itself is raised again by the capture of the whole model.
        why = _not_without_values(error)
    note = f"the whole model was built first, which takes memory for all of it, because {why}"
    return CapturedPart(captured_step(options), note)


def _not_without_values(error: CaptureError) -> str:
    cause = error.__cause__ or error
    place = user_location(cause)
    where = f"at {place}" if place else f"({one_line(cause)})"
    return f"it cannot be built of tensors without values {where}"


def _with_values(
    captured: CapturedStep, recording: Recording, wanted: set[str], others: bool
) -> CapturedStep:
    """Makes all wanted values at once, so that the model is built again only once."""
    code, names = captured.code, captured.names
    flat = {i: some for i, some in code.members.items() if i in wanted}
    held = {("held", i): v for i, v in captured.values.items() if i in wanted and i not in flat}
    members = {("member", m.names[0]): m.value for some in flat.values() for m in some}
    constants = {("constant", i): v for i, v in code.constants.items()}
    rest = {("other", n.key): v for n, v in names.others.items() if others}
    every: dict[tuple[str, str], torch.Tensor] = {**held, **members, **constants, **rest}
    fake = {key: value for key, value in every.items() if is_fake(value)}
    # The whole weight of a shard needs no memory for longer than it takes to make it.
    shards = [key for key in fake if key[0] == "held" and key[1] in code.shards]
    real = {**every, **recording.make(fake, copied=shards)}
    for identifier, some in flat.items():
        parts = [real["member", member.names[0]].reshape(-1) for member in some]
        real["held", identifier] = torch.cat(parts)
    made = captured.with_values(
        replace(
            code,
            parameters={i: real.get(("held", i), v) for i, v in code.parameters.items()},
            buffers={i: real.get(("held", i), v) for i, v in code.buffers.items()},
            constants={i: real["constant", i] for i in code.constants},
        )
    )
    rest_made = {n: real.get(("other", n.key), v) for n, v in names.others.items()}
    return replace(made, names=replace(names, others=rest_made))
