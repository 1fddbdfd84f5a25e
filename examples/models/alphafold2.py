"""AlphaFold2 without its structure module: guesses hidden residues of an alignment, and distances.

Jumper et al., Highly accurate protein structure prediction with AlphaFold (2021): the embedding of
the input (supplementary methods 1.5, algorithms 3 and 4), the Evoformer, which has nearly all
parameters (examples/models/evoformer.py), and the guesses of distances between residues (1.9.8) and
of residues that were hidden (1.9.9), on synthetic data. The sizes are those with which Moirai is
measured (section IV-A, table IV): alignments of 128 sequences, of the 256 residues of AlphaFold2's
training.

    training_step          48 blocks of width 256 with 8 heads: AlphaFold2's own, 88 million
    training_step_930m     64 blocks of width 512 with 16 heads
    training_step_2400m    96 blocks of width 1,024 with 32 heads
    training_step_3200m    128 of them
    training_step_small    2 blocks of width 32 with 4 heads, for quick trials

Moirai states no width of the pairs. Here it is the one, in heads of 32, with which a model comes
nearest to the parameters that Moirai states: 87, 930, 2,400 and 3,200 million. What it calls a
sequence batch of 128 is taken as the number of sequences of one alignment.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from placewire.examples.models.data import alignments, step_on
from placewire.examples.models.evoformer import Block, Sizes
from placewire.examples.models.parts import small_initial_values
from placewire.optimizer.capture.protocol import TrainingStep

# Amino acids, one that is unknown, a gap, and what is hidden.
KINDS = 23
DISTANCES = 64
# Offsets between two residues are told apart up to this one.
FARTHEST = 32

M87 = Sizes()
M930 = replace(M87, blocks=64, alignment=512, pair=544, heads=16)
M2400 = replace(M87, blocks=96, alignment=1024, pair=416, heads=32)
M3200 = replace(M2400, blocks=128)
SMALL = Sizes(blocks=2, alignment=32, pair=16, heads=4, outer=8, sequences=6, residues=8)


class Embedding(nn.Module):
    """int64[batch, sequences, residues] -> (alignment, pairs): of each residue its kind, of each
    pair the kinds in the first sequence and the offset."""

    offset: torch.Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.kind = nn.Embedding(KINDS, sizes.alignment)
        self.target = nn.Embedding(KINDS, sizes.alignment)
        self.left = nn.Embedding(KINDS, sizes.pair)
        self.right = nn.Embedding(KINDS, sizes.pair)
        self.apart = nn.Embedding(2 * FARTHEST + 1, sizes.pair)
        place = torch.arange(sizes.residues)
        offset = (place[:, None] - place).clamp(-FARTHEST, FARTHEST) + FARTHEST
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, residues: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        target = residues[:, 0]
        pairs = self.left(target)[:, :, None] + self.right(target)[:, None]
        alignment = self.kind(residues) + self.target(target)[:, None]
        return alignment, pairs + self.apart(self.offset)


class AlphaFold2(nn.Module):
    """int64[batch, sequences, residues] -> (logits float[batch, sequences, residues, KINDS] of what
    is hidden, logits float[batch, residues, residues, DISTANCES] of the pairs' distances)"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(sizes)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.blocks))
        self.hidden = nn.Linear(sizes.alignment, KINDS)
        self.distance = nn.Linear(sizes.pair, DISTANCES)
        self.apply(small_initial_values)

    def forward(self, residues: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        alignment, pairs = self.embedding(residues)
        for block in self.blocks:
            alignment, pairs = block(alignment, pairs)
        half = self.distance(pairs)
        return self.hidden(alignment), half + half.transpose(1, 2)


class BothLosses(nn.Module):
    """Cross-entropy of the residues, and 0.3 times that of the distances (1.9, equation 7). known:
    int64[batch, sequences + residues, residues], the alignment above the distances."""

    def forward(
        self, guessed: tuple[torch.Tensor, torch.Tensor], known: torch.Tensor
    ) -> torch.Tensor:
        hidden, distance = guessed
        sequences = hidden.shape[1]
        of_residues = _each(hidden, known[:, :sequences])
        return of_residues + 0.3 * _each(distance, known[:, sequences:])


def _each(logits: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 2), known.flatten())


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M87)


def training_step_930m(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M930)


def training_step_2400m(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M2400)


def training_step_3200m(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, M3200)


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = alignments(batch, seed, KINDS, DISTANCES, sizes.sequences, sizes.residues)
    return step_on(data, AlphaFold2(sizes), BothLosses())
