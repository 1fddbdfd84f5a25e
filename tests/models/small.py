"""Small example models whose dropout never drops, so that they are comparable with eager training.

The masks are drawn all the same, and attention takes the path that dropout needs.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from placewire.examples.models import alexnet as alexnet_example
from placewire.examples.models import alphafold2 as alphafold2_example
from placewire.examples.models import bert as bert_example
from placewire.examples.models import deep_transformer, gpt3, inception, vgg16
from placewire.examples.models import fnet as fnet_example
from placewire.examples.models import gnmt as gnmt_example
from placewire.examples.models import gpt2 as gpt2_example
from placewire.examples.models import holography as holography_example
from placewire.examples.models import mixture as mixture_example
from placewire.examples.models import mlp as mlp_example
from placewire.examples.models import resnet50 as resnet50_example
from placewire.examples.models import swin as swin_example
from placewire.examples.models import transformer as transformer_example
from placewire.examples.models import two_towers as two_towers_example
from placewire.optimizer.capture.protocol import TrainingStep

# 1 - NEVER is 1, so that nothing is dropped, and everything is scaled by exactly 1.
NEVER = 1e-30


def mlp(batch: int, seed: int) -> TrainingStep:
    step = mlp_example.training_step(batch, seed)
    for module in step.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = NEVER
    return step


def alexnet(batch: int, seed: int) -> TrainingStep:
    return alexnet_example.step_of(batch, seed, shrink=8, dropout=NEVER)


def vgg(batch: int, seed: int) -> TrainingStep:
    return vgg16.step_of(batch, seed, batch_norm=False, dropout=NEVER, shrink=8)


def vgg_batch_norm(batch: int, seed: int) -> TrainingStep:
    return vgg16.step_of(batch, seed, batch_norm=True, dropout=NEVER, shrink=8)


def resnet50(batch: int, seed: int) -> TrainingStep:
    return resnet50_example.training_step_small(batch, seed)


def inception_v3(batch: int, seed: int) -> TrainingStep:
    return inception.step_of(batch, seed, replace(inception.SMALL, dropout=NEVER))


def bert(batch: int, seed: int) -> TrainingStep:
    return bert_example.step_of(batch, seed, replace(bert_example.SMALL, dropout=NEVER))  # type: ignore[attr-defined]


def fnet(batch: int, seed: int) -> TrainingStep:
    return fnet_example.step_of(batch, seed, replace(fnet_example.SMALL, dropout=NEVER))  # type: ignore[attr-defined]


def gpt2(batch: int, seed: int) -> TrainingStep:
    return gpt2_example.step_of(batch, seed, replace(gpt2_example.SMALL, dropout=NEVER))  # type: ignore[attr-defined]


def gpt2_fused(batch: int, seed: int) -> TrainingStep:
    """Attention without dropout stays one operator, with one for its backward."""
    return gpt2_example.step_of(batch, seed, replace(gpt2_example.SMALL, dropout=0.0))  # type: ignore[attr-defined]


def deep(batch: int, seed: int) -> TrainingStep:
    return gpt2_example.step_of(batch, seed, replace(deep_transformer.SMALL, dropout=NEVER))


def mixture(batch: int, seed: int) -> TrainingStep:
    return mixture_example.step_of(batch, seed, replace(mixture_example.SMALL, dropout=NEVER))


def two_towers(batch: int, seed: int) -> TrainingStep:
    return two_towers_example.step_of(batch, seed, replace(two_towers_example.SMALL, dropout=NEVER))


def gnmt(batch: int, seed: int) -> TrainingStep:
    return gnmt_example.step_of(batch, seed, replace(gnmt_example.SMALL, dropout=NEVER))


def transformer(batch: int, seed: int) -> TrainingStep:
    sizes = replace(transformer_example.SMALL, dropout=NEVER)
    return transformer_example.step_of(batch, seed, sizes)


def gpt3_shaped(batch: int, seed: int) -> TrainingStep:
    return gpt2_example.step_of(batch, seed, replace(gpt3.SMALL, dropout=NEVER))


def holography(batch: int, seed: int) -> TrainingStep:
    return holography_example.training_step_small(batch, seed)


def swin(batch: int, seed: int) -> TrainingStep:
    return swin_example.step_of(batch, seed, replace(swin_example.SMALL, dropout=NEVER))


def alphafold2(batch: int, seed: int) -> TrainingStep:
    sizes = replace(alphafold2_example.SMALL, row_dropout=NEVER, pair_dropout=NEVER)
    return alphafold2_example.step_of(batch, seed, sizes)
