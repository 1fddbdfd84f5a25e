"""Modules that depend on the number of the step: seeds of random operators, and updates."""

from __future__ import annotations

import hashlib

import torch


class Stepped(torch.nn.Module):
    """`step` is set from outside before every step, from 0, so that a run may begin at any step."""

    step: int = 0


class Seeder(Stepped):
    """Seeds the device's generator for one random operator, by (seed, step, operator) alone."""

    def __init__(self, seed: int, operator: int, device_type: str = "cpu") -> None:
        super().__init__()
        self.seed = seed
        self.operator = operator
        self.on_cuda = device_type == "cuda"

    def forward(self) -> None:
        seed = operator_seed(self.seed, self.step, self.operator)
        if self.on_cuda:
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)


def operator_seed(seed: int, step: int, operator: int) -> int:
    """Returns 63 bits; those of neighbouring arguments are unrelated."""
    digest = hashlib.blake2b(f"{seed},{step},{operator}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
