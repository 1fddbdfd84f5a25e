"""What a rank's tensors are on."""

from __future__ import annotations

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.optimizer.capture.protocol import DeviceType
from placewire.optimizer.device_names import index_of
from placewire.optimizer.placement import Placement


def use_device(spec: RankSpec, placement: Placement) -> DeviceType:
    """By the placement's type of the rank's device. A CUDA device, the one of the rank's index on
    its server, is the process's current one from here on. Raises JobError."""
    cluster = placement.cluster
    device = cluster.devices[cluster.device_names.index(spec.device)]
    if device.runs_on == "cpu":
        return "cpu"
    index = index_of(spec.device)
    if index >= torch.cuda.device_count():
        raise JobError(
            f"{spec.device} is of type {device.type!r}, and this server has "
            f"{torch.cuda.device_count()} CUDA devices that torch can use",
            "types of processors begin with `cpu`; a GPU needs a CUDA build of torch",
        )
    if spec.backend == "gloo" and spec.world_size > 1:
        raise JobError(
            f"backend gloo carries messages of CPU devices, and {spec.device} is of type "
            f"{device.type!r}",
            "use `job.backend: nccl` where every device is CUDA's",
        )
    torch.cuda.set_device(index)
    return "cuda"
