"""A very deep, narrow Transformer: a training step of more than 12,000 operators.

It has 80 of GPT-2's layers (examples/models/gpt2.py) of width 256 with 4 heads; 8,192 words and
sequences of 128 tokens. 65 million parameters (262 MB): large in operators, small in memory.

    training_step          80 layers
    training_step_small    6 layers of width 32, for quick trials
"""

from __future__ import annotations

from dataclasses import replace

from placewire.examples.models import parts
from placewire.examples.models.gpt2 import step_of
from placewire.examples.models.parts import Sizes
from placewire.optimizer.capture.protocol import TrainingStep

DEEP = Sizes(words=8192, layers=80, width=256, heads=4)
SMALL = replace(parts.SMALL, layers=6)


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, DEEP)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)
