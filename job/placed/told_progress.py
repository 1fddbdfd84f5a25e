"""Tells from time to time how far a rank has come with reading or writing many tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import torch

# Whoever started the ranks takes those for hung that say nothing for some minutes.
TELL_EVERY_SECONDS = 60.0

Tell = Callable[[str], None]


class ToldProgress:
    """say: gets at most once a minute how many MiB were handled since the beginning, as a text. on:
    is called whenever there are more, with their number of bytes."""

    def __init__(
        self, say: Tell = lambda size: None, on: Callable[[int], None] = lambda total: None
    ) -> None:
        self._say, self._on = say, on
        self._bytes, self._told = 0, time.monotonic()

    def reached(self, total_bytes: int) -> None:
        self._bytes = total_bytes
        self._on(total_bytes)
        if (now := time.monotonic()) - self._told >= TELL_EVERY_SECONDS:
            self._told = now
            self._say(f"{total_bytes / 2**20:.1f} MiB")

    def add(self, tensor: torch.Tensor) -> None:
        self.reached(self._bytes + tensor.nbytes)

    def over(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the tensors, each of which counts once the next one is asked for."""
        for name, tensor in tensors:
            yield name, tensor
            self.add(tensor)
