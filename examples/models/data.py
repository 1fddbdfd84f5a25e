"""Makes the synthetic data that the examples train on, and training steps over it.

A batch depends on the seed and the step's number alone, so that every process makes the same one.
Each kind of data has a pattern that a model can learn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from placewire.optimizer.capture.protocol import Tensors, TrainingStep

PADDING = 0
# For translations(): stands before the first word.
BEGIN = 0
# For choices(): the number of kinds of users and items, and of items that a user took before.
KINDS = 10
HISTORY = 4


def step_on(
    batches: Callable[[int], Tensors], model: nn.Module, loss: nn.Module | None
) -> TrainingStep:
    return TrainingStep(model=model, example_inputs=batches(0), batches=batches, loss=loss)


def generator_of(seed: int, step: int) -> torch.Generator:
    """Returns a generator other than torch's own, from which dropout draws."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


def images(batch: int, seed: int, classes: int = 10, side: int = 32) -> Callable[[int], Tensors]:
    """step -> float[batch, 3, side, side], int64[batch]: noise around a mean that depends on the
    class."""

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        labels = torch.randint(0, classes, (batch,), generator=generator)
        noise = torch.randn(batch, 3, side, side, generator=generator)
        means = 1.8 / (classes - 1) * labels - 0.9
        return noise + means.view(batch, 1, 1, 1), labels

    return batches


def reviews(batch: int, seed: int, words: int, length: int) -> Callable[[int], Tensors]:
    """step -> int64[batch, length], int64[batch]: token sequences padded to one length, and one of
    two classes each.

    A class has its own half of the vocabulary for every second word.
    """

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        labels = torch.randint(0, 2, (batch,), generator=generator)
        half = (words - 1) // 2
        tokens = 1 + torch.randint(0, half, (batch, length), generator=generator)
        tokens[:, ::2] += labels[:, None] * half
        lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
        return torch.where(torch.arange(length) < lengths, tokens, PADDING), labels

    return batches


def sentences(batch: int, seed: int, words: int, length: int) -> Callable[[int], Tensors]:
    """step -> int64[batch, length] twice: token sequences, and the same shifted by one word.

    Words follow each other by a fixed rule, from which one word in four departs.
    """

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        start = torch.randint(0, words, (batch, 1), generator=generator)
        tokens = (start + 7 * torch.arange(length + 1)) % words
        noise = torch.randint(0, words, tokens.shape, generator=generator)
        departs = torch.randint(0, 4, tokens.shape, generator=generator) == 0
        tokens = torch.where(departs, noise, tokens)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return batches


def translations(batch: int, seed: int, words: int, length: int) -> Callable[[int], Tensors]:
    """step -> int64[batch, length] three times: a sentence, its translation behind a BEGIN, and the
    translation.

    A translation is the sentence in reverse, with one word in eight replaced. Small numbers are
    frequent, as some words are in any language.
    """

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        drawn = torch.randint(1, words, (4, batch, length), generator=generator)
        sentence, noise = drawn.amin(dim=0), drawn[0]
        departs = torch.randint(0, 8, sentence.shape, generator=generator) == 0
        translation = torch.where(departs, noise, sentence.flip(1))
        begin = torch.full((batch, 1), BEGIN)
        return sentence, torch.cat([begin, translation[:, :-1]], dim=1), translation

    return batches


def holograms(batch: int, seed: int, side: int) -> Callable[[int], Tensors]:
    """step -> float[batch, 4, side, side], float[batch, 6, side, side]: a picture's three colours
    and its depth, from 0 to 1; and the amplitude and phase of each colour's light.

    A colour's phase turns with the depth, faster for shorter waves; the light of a point spreads to
    its neighbours.
    """

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        picture = torch.rand(batch, 4, side, side, generator=generator)
        colours, depth = picture[:, :3], picture[:, 3:]
        waves = torch.tensor([0.64, 0.52, 0.45]).view(1, 3, 1, 1)
        spread = functional.avg_pool2d(colours, 3, stride=1, padding=1)
        return picture, torch.cat([spread, 0.5 * depth / waves], dim=1)

    return batches


def alignments(
    batch: int, seed: int, kinds: int, distances: int, sequences: int, residues: int
) -> Callable[[int], Tensors]:
    """step -> int64[batch, sequences, residues], int64[batch, sequences + residues, residues]: an
    alignment in which one residue in seven is hidden, the last kind; and the whole alignment, with
    the distance of each pair of residues below it.

    A sequence differs from the first in one residue of four. Two residues are nearer where their
    kinds are, as are their places.
    """

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        drawn = torch.randint(0, kinds - 1, (2, batch, sequences, residues), generator=generator)
        departs = torch.randint(0, 4, drawn[0].shape, generator=generator) == 0
        whole = torch.where(departs, drawn[0], drawn[1, :, :1])
        hides = torch.randint(0, 7, whole.shape, generator=generator) == 0
        first, place = whole[:, 0], torch.arange(residues)
        apart = (first[:, :, None] - first[:, None]).abs() + (place[:, None] - place).abs()
        known = torch.cat([whole, apart.clamp(max=distances - 1)], dim=1)
        return torch.where(hides, kinds - 1, whole), known

    return batches


def choices(batch: int, seed: int, users: int, items: int) -> Callable[[int], Tensors]:
    """step -> int64[batch, 1 + HISTORY], int64[batch, 2]: a user with the items that they took
    before, and the item that they took now with its kind.

    Users and items fall into KINDS kinds; nine of ten items that a user takes are of their kind.
    """

    def batches(step: int) -> Tensors:
        generator = generator_of(seed, step)
        user = torch.randint(0, users, (batch, 1), generator=generator)
        kind = (user % KINDS).expand(batch, HISTORY + 1)
        strays = torch.randint(0, 10, kind.shape, generator=generator) == 0
        other = torch.randint(0, KINDS, kind.shape, generator=generator)
        kind = torch.where(strays, other, kind)
        taken = torch.randint(0, items // KINDS, kind.shape, generator=generator) * KINDS + kind
        user_side = torch.cat([user, taken[:, 1:]], dim=1)
        return user_side, torch.stack([taken[:, 0], kind[:, 0]], dim=1)

    return batches
