"""GPT-2 of transformers learns to write a text byte by byte; plan.yaml, beside it, is its plan."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from placewire.optimizer.capture.protocol import LossAndMetrics, TrainingStep

TEXT = Path(__file__)  # put the path of a text of yours here; every server needs it
LENGTH = 64


class GPT2(GPT2LMHeadModel):
    def forward(self, tokens: torch.Tensor) -> LossAndMetrics:
        found = super().forward(input_ids=tokens, labels=tokens, use_cache=False)
        right = found.logits[:, :-1].argmax(-1) == tokens[:, 1:]
        return found.loss, {"accuracy": right.float().mean()}


def training_step(batch: int, seed: int) -> TrainingStep:
    text = torch.tensor(list(TEXT.read_bytes()))
    learned, held_out = text[: -len(text) // 5], text[-len(text) // 5 :]

    def batch_of(part: torch.Tensor, number: int) -> tuple[torch.Tensor, ...]:
        draw = torch.Generator().manual_seed(seed * 1_000_003 + number)
        starts = torch.randint(len(part) - LENGTH, (batch, 1), generator=draw)
        return (part[starts + torch.arange(LENGTH)],)

    return TrainingStep(
        model=GPT2(GPT2Config(n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4, vocab_size=256)),
        example_inputs=batch_of(learned, 0),
        batches=lambda step: batch_of(learned, step),
        validation=lambda number: batch_of(held_out, number),
    )
