"""What a capture is asked for."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from placewire.optimizer.capture.protocol import DeviceType
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast, Recompute


@dataclass(frozen=True)
class CaptureOptions:
    """Which step is captured, and how.

    accumulate   the batch is cut into this many equal micro-batches, whose gradients are added
                 before the update; the loss is the mean of theirs
    autocast     model and loss run under torch.autocast
    device_type  where the step will run; cuda is the process's current CUDA device, for which torch
                 may have other operators
    shards       into how many a large weight is cut by rows
    recompute    which layers are computed again in the backward half, beside what the model wraps
                 in torch.utils.checkpoint
    decompose    the step is captured as core operators, with the optimizer's update written out
    inference    the forward pass in evaluation mode alone, whose outputs are the model's, before
                 the loss
    half         parameters and numbers of an inference are in half precision, float16
    bucket       the only bucket that is captured, whose batches alone are then read; None: all
    """

    model: str
    batch: int
    optimizer: OptimizerChoice
    seed: int
    _: KW_ONLY
    accumulate: int = 1
    autocast: Autocast | None = None
    device_type: DeviceType = "cpu"
    shards: int = 1
    recompute: Recompute = "none"
    decompose: bool = False
    inference: bool = False
    half: bool = False
    bucket: str | None = None
