"""A captured step with the values of a part of the model, for who has memory for that part."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from placewire.optimizer.capture.collector import collector_paused
from placewire.optimizer.capture.deferred import NotRepeatableError, Recording, is_fake, recorded
from placewire.optimizer.capture.errors import CaptureError, one_line
from placewire.optimizer.capture.protocol import Autocast, DeviceType
from placewire.optimizer.capture.step import CapturedStep, built_step, capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice


@dataclass(frozen=True)
class CapturedPart:
    """step: its parameters and buffers have values where they were wanted. note: why the whole
    model was built all the same, which needs memory for all of it for a moment; or nothing."""

    step: CapturedStep
    note: str = ""


def capture_part(
    model_path: str,
    batch: int,
    optimizer: OptimizerChoice,
    seed: int,
    accumulate: int = 1,
    autocast: Autocast | None = None,
    device_type: DeviceType = "cpu",
    *,
    wanted: Collection[str],
    others: bool,
) -> CapturedPart:
    """As capture(), the same values included, with those of the operators `wanted` only.

    others: whether StateNames.others have values, too. Raises CaptureError.
    """
    try:
        with collector_paused():
            step, recording = recorded(lambda: built_step(model_path, batch, seed, device_type))
        captured = captured_from(step, model_path, batch, optimizer, seed, accumulate, autocast)
        if any(is_fake(tensor) for tensor in captured.batches(0)):
            raise NotRepeatableError("batches are made of tensors of the function")
        return CapturedPart(_with_values(captured, recording, set(wanted), others))
    except (NotRepeatableError, CaptureError) as error:
        # What is wrong with the model itself is said by what follows.
        why = one_line(error)
    captured = capture(model_path, batch, optimizer, seed, accumulate, autocast, device_type)
    return CapturedPart(captured, f"the whole model was built first: {why}")


def _with_values(
    captured: CapturedStep, recording: Recording, wanted: set[str], others: bool
) -> CapturedStep:
    """Everything at once: the model is built again once."""
    code, names = captured.code, captured.names
    held = {("held", i): v for i, v in captured.values.items() if i in wanted}
    constants = {("constant", i): v for i, v in code.constants.items()}
    rest = {("other", n.key): v for n, v in names.others.items() if others}
    every: dict[tuple[str, str], torch.Tensor] = {**held, **constants, **rest}
    fake = {key: value for key, value in every.items() if is_fake(value)}
    real = {**every, **recording.make(fake)}
    return replace(
        captured,
        code=replace(
            code,
            parameters={i: real.get(("held", i), v) for i, v in code.parameters.items()},
            buffers={i: real.get(("held", i), v) for i, v in code.buffers.items()},
            constants={i: real["constant", i] for i in code.constants},
        ),
        names=replace(
            names, others={n: real.get(("other", n.key), v) for n, v in names.others.items()}
        ),
    )
