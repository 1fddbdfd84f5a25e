"""GPT-2 of transformers, unchanged, that learns to write a text byte by byte.

docs/cluster.md ("Starting ranks over SSH") says how to install `transformers` on servers. The plan
is plan.yaml, in this folder.
"""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from placewire.optimizer.capture.protocol import LossAndMetrics, TrainingStep

TEXT = Path(__file__)  # put the path of a text of yours here; every server needs it
LENGTH = 64


class WithLoss(torch.nn.Module):
    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> LossAndMetrics:
        found = self.model(input_ids=tokens, labels=tokens, use_cache=False)
        right = found.logits[:, :-1].argmax(-1) == tokens[:, 1:]
        return found.loss, {"accuracy": right.float().mean()}


def training_step(batch: int, seed: int) -> TrainingStep:
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4)
    text = torch.tensor(list(TEXT.read_bytes()))
    learned, held_out = text[: -len(text) // 5], text[-len(text) // 5 :]

    def batch_of(part: torch.Tensor, number: int) -> tuple[torch.Tensor, ...]:
        draw = torch.Generator().manual_seed(seed * 1_000_003 + number)
        starts = torch.randint(len(part) - LENGTH, (batch,), generator=draw).tolist()
        return (torch.stack([part[start : start + LENGTH] for start in starts]),)

    return TrainingStep(
        model=WithLoss(GPT2LMHeadModel(config)),
        example_inputs=batch_of(learned, 0),
        batches=lambda step: batch_of(learned, step),
        validation=lambda number: batch_of(held_out, number),
    )
