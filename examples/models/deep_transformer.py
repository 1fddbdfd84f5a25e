"""A very deep, narrow Transformer: a training step of more than 12,000 operators.

GPT-2's layers (examples/models/gpt2.py), 80 of them of width 256 with 4 heads; 8,192 words and
sequences of 128 tokens. 65 million parameters (262 MB): large in operators, small in memory.

    training_step          80 layers
    training_step_small    6 layers of width 32, for tries
"""

from __future__ import annotations

from examples.models.gpt2 import Sizes, step_of
from optimizer.capture.protocol import TrainingStep

DEEP = Sizes(layers=80, width=256, heads=4, words=8192, length=128, dropout=0.1)
SMALL = Sizes(layers=6, width=32, heads=4, words=101, length=16, dropout=0.1)


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, DEEP)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)
