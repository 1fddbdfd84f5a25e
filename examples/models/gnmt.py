"""An LSTM like GNMT that translates, on synthetic data.

Wu et al., Google's Neural Machine Translation System (2016), section 3: an encoder whose first
layer reads the sentence in both directions, a decoder whose first layer computes at every word an
additive attention that all its layers use, and residual connections from the third layer on. The
sizes are those that Celeritas is measured with (section 6.2.1): 4 layers each, 2,048 hidden units;
it does not state the 32,000 words and the 30 words per sentence. Every word in every layer has
operators of its own, so that a layer can begin before the one below has ended. 591 million
parameters.

    training_step          as above
    training_step_small    3 layers each of 32 units, sentences of 6, for quick trials
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from placewire.examples.models.data import step_on, translations
from placewire.examples.models.parts import EachTokenLoss
from placewire.optimizer.capture.protocol import TrainingStep


@dataclass(frozen=True)
class Sizes:
    """layers: of encoder and decoder each; the encoder's first has two directions."""

    words: int = 32_000
    layers: int = 4
    hidden: int = 2048
    length: int = 30
    dropout: float = 0.2


SMALL = Sizes(words=101, layers=3, hidden=32, length=6)

Words = list[torch.Tensor]


class Cell(nn.Module):
    """One word of one layer: float[batch, width] and the state before, float[batch, hidden] twice
    -> the state after (Hochreiter and Schmidhuber, 1997, with forget gates)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.given = nn.Linear(width, 4 * hidden)
        self.before = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(
        self, x: torch.Tensor, said: torch.Tensor, kept: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        put, forget, new, say = (self.given(x) + self.before(said)).chunk(4, dim=1)
        kept = torch.sigmoid(forget) * kept + torch.sigmoid(put) * torch.tanh(new)
        return torch.sigmoid(say) * torch.tanh(kept), kept


class Layer(nn.Module):
    """Words of float[batch, width] each -> words of float[batch, hidden]."""

    def __init__(self, width: int, sizes: Sizes, residual: bool) -> None:
        super().__init__()
        self.hidden = sizes.hidden
        self.cell = Cell(width, sizes.hidden)
        self.dropout = nn.Dropout(sizes.dropout)
        self.residual = residual

    def forward(self, words: Sequence[torch.Tensor]) -> Words:
        said = kept = words[0].new_zeros(len(words[0]), self.hidden)
        results = []
        for x in words:
            said, kept = self.cell(self.dropout(x), said, kept)
            results.append(x + said if self.residual else said)
        return results


class Encoder(nn.Module):
    """Words of float[batch, hidden] each -> the same."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.forwards = Layer(sizes.hidden, sizes, residual=False)
        self.backwards = Layer(sizes.hidden, sizes, residual=False)
        self.second = Layer(2 * sizes.hidden, sizes, residual=False)
        self.others = nn.Sequential(
            *(Layer(sizes.hidden, sizes, residual=True) for _ in range(sizes.layers - 2))
        )

    def forward(self, words: Words) -> Words:
        there = self.forwards(words)
        back = self.backwards(words[::-1])[::-1]
        both = [torch.cat(pair, dim=1) for pair in zip(there, back, strict=True)]
        result: Words = self.others(self.second(both))
        return result


class Attention(nn.Module):
    """The decoder's state float[batch, hidden], the encoded sentence float[batch, length, hidden]
    and its keys -> the context float[batch, hidden] (Bahdanau et al., 2015, section A.1.2)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(
        self, said: torch.Tensor, encoded: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        scores = self.score(torch.tanh(self.query(said)[:, None] + keys))
        return (torch.softmax(scores, dim=1) * encoded).sum(dim=1)


class Decoder(nn.Module):
    """Words of float[batch, hidden] each, and the encoded sentence -> the same: the first layer
    computes the context at every word, and all others read it beside their input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.hidden = sizes.hidden
        self.first = Cell(2 * sizes.hidden, sizes.hidden)
        self.dropout = nn.Dropout(sizes.dropout)
        self.attention = Attention(sizes.hidden)
        self.others = nn.ModuleList(
            Layer(2 * sizes.hidden, sizes, residual=False) for _ in range(sizes.layers - 1)
        )

    def forward(self, words: Words, encoded: torch.Tensor) -> Words:
        keys = self.attention.key(encoded)
        said = kept = seen = words[0].new_zeros(len(words[0]), self.hidden)
        answers, results = [], []
        for x in words:
            said, kept = self.first(self.dropout(torch.cat([x, seen], dim=1)), said, kept)
            seen = self.attention(said, encoded, keys)
            answers.append(seen)
            results.append(said)
        for number, layer in enumerate(self.others):
            beside = [torch.cat(pair, dim=1) for pair in zip(results, answers, strict=True)]
            after = layer(beside)
            residual = number > 0
            results = [a + b for a, b in zip(results, after, strict=True)] if residual else after
        return results


class Gnmt(nn.Module):
    """sentence int64[batch, length], translation behind a BEGIN int64[batch, length] -> logits
    float[batch, length, words]"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.source = nn.Embedding(sizes.words, sizes.hidden)
        self.target = nn.Embedding(sizes.words, sizes.hidden)
        self.encoder = Encoder(sizes)
        self.decoder = Decoder(sizes)
        self.head = nn.Linear(sizes.hidden, sizes.words)

    def forward(self, sentence: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        encoded = torch.stack(self.encoder(_each_word(self.source(sentence))), dim=1)
        said = self.decoder(_each_word(self.target(before)), encoded)
        logits: torch.Tensor = self.head(torch.stack(said, dim=1))
        return logits


def _each_word(embedded: torch.Tensor) -> Words:
    return list(embedded.unbind(dim=1))


def training_step(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, Sizes())


def training_step_small(batch: int, seed: int) -> TrainingStep:
    return step_of(batch, seed, SMALL)


def step_of(batch: int, seed: int, sizes: Sizes) -> TrainingStep:
    data = translations(batch, seed, sizes.words, sizes.length)
    return step_on(data, Gnmt(sizes), EachTokenLoss())
