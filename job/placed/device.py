"""Chooses the device of a rank's tensors."""

from __future__ import annotations

import os

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.optimizer.capture.protocol import DeviceType
from placewire.optimizer.device_names import index_of
from placewire.optimizer.placement import Placement


def use_device(spec: RankSpec, placement: Placement) -> DeviceType:
    """Returns what the rank's device runs on. A CUDA device, by its index on the server, becomes
    the process's current one. Raises JobError where it does not exist, or gloo must serve it."""
    cluster = placement.cluster
    device = cluster.devices[cluster.device_names.index(spec.device)]
    if device.runs_on == "cpu":
        return "cpu"
    # A plan's devices are numbered as nvidia-smi does it; by default CUDA begins with the fastest.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    index = index_of(spec.device)
    if index >= torch.cuda.device_count():
        raise JobError(
            f"{spec.device} is of type {device.type!r}, and this server has "
            f"{torch.cuda.device_count()} CUDA devices that torch can use",
            "give a processor the type `cpu` or `cpu:NAME`; a GPU needs a CUDA build of torch",
        )
    if spec.backend == "gloo" and spec.world_size > 1:
        raise JobError(
            f"backend gloo carries messages of CPU devices, and {spec.device} is of type "
            f"{device.type!r}",
            "use `job.backend: nccl` where every device is a CUDA device",
        )
    torch.cuda.set_device(index)
    return "cuda"
