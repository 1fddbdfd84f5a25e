"""Decoders of GPT-3's shape that predict the next word, on synthetic data.

Brown et al., Language Models are Few-Shot Learners (2020), section 2.1, without its sparse
attention: GPT-2's layers (examples/models/gpt2.py), in the sizes that Moirai is measured with
(section IV-A, table IV); sequences of 2,048 tokens, 50,257 words.

    training_step             24 layers of width 1,024 with 16 heads: 356 million parameters
    training_step_1300m       32 layers of width 2,048 with 32 heads
    training_step_2700m       32 layers of width 2,560 with 32 heads
    training_step_13b         40 layers of width 5,120 with 40 heads
    training_step_small       3 layers of width 32, for quick trials

Moirai names the first four by 330 million, 1.3, 2.7 and 13 thousand million parameters. `optimizer
capture` gives parameters no values, so that it needs no memory for them.
"""

from __future__ import annotations

from dataclasses import replace

from placewire.examples.models import parts
from placewire.examples.models.gpt2 import step_of
from placewire.examples.models.parts import Sizes
from placewire.optimizer.capture.protocol import TrainingStep

M330 = Sizes(words=50_257, layers=24, width=1024, heads=16, length=2048)
M1300 = replace(M330, layers=32, width=2048, heads=32)
M2700 = replace(M330, layers=32, width=2560, heads=32)
B13 = replace(M330, layers=40, width=5120, heads=40)
SMALL = replace(parts.SMALL, layers=3, length=32)


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M330)


def training_step_1300m(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M1300)


def training_step_2700m(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M2700)


def training_step_13b(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, B13)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)
