"""Steps whose batches are drawn by a process's global generators, and by one of their own."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from placewire.optimizer.capture.protocol import Tensors, TrainingStep
from tests.models.regression import regression_step

READING_SECONDS = 0.05


def by_the_global_ones(batch: int, seed: int) -> TrainingStep:
    """As transforms of torchvision and MixUp draw. It takes some time, as reading files does."""

    def batches(step: int) -> Tensors:
        time.sleep(READING_SECONDS)
        x = torch.rand(batch, 4) * random.random()
        return x, torch.tensor(np.random.rand(batch, 4), dtype=torch.float32)

    return replace(regression_step(nn.Linear(4, 4), batch), batches=batches, validation=batches)


def by_the_time(batch: int, seed: int) -> TrainingStep:
    """Its targets are other ones in each process; what is computed of them is not."""
    draw = torch.Generator().manual_seed(time.time_ns())

    def batches(step: int) -> Tensors:
        return torch.ones(batch, 4), torch.rand(batch, 4, generator=draw)

    return replace(regression_step(nn.Linear(4, 4), batch), batches=batches)
