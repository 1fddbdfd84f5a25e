"""What a rank's program needs of the network, and the transport of a rank that is alone."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import torch

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage


class Watcher(Protocol):
    """Wants to know while `on`. Times are of time.perf_counter."""

    on: bool

    def left(self, message: RankMessage, rail: str, started: float, finished: float) -> None:
        """A part of it was handed over at `started`, and with the kernel whole at `finished`."""


class Transport(Protocol):
    """Raises JobError when a peer is lost."""

    sent_bytes: Counter[tuple[str, str]]  # by (destination device, rail)

    def report_to(self, watcher: Watcher) -> None:
        """Before the first step. The watcher is told from any thread, where this can tell."""

    def begin_step(self) -> None:
        """Posts every receive, and returns when all ranks have come this far."""

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        """wire: uint8[bytes]; must not be written before complete() or end_step()."""

    def receive(self, message: RankMessage) -> torch.Tensor:
        """uint8[bytes], once per step."""

    def complete(self, message: RankMessage) -> None:
        """Returns when the message's bytes need no longer stay as they are."""

    def end_step(self) -> None:
        """Completes all sends."""

    def close(self) -> None: ...


class Alone:
    """For one rank: there is nobody to talk to."""

    def __init__(self) -> None:
        self.sent_bytes: Counter[tuple[str, str]] = Counter()

    def report_to(self, watcher: Watcher) -> None:
        pass

    def begin_step(self) -> None:
        pass

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        raise JobError(f"a single rank was asked to send {message.producer!r}")

    def receive(self, message: RankMessage) -> torch.Tensor:
        raise JobError(f"a single rank was asked to receive {message.producer!r}")

    def complete(self, message: RankMessage) -> None:
        raise JobError(f"a single rank was asked to send {message.producer!r}")

    def end_step(self) -> None:
        pass

    def close(self) -> None:
        pass


def check_size(message: RankMessage, wire: torch.Tensor) -> None:
    """Raises JobError where a value is not what the placement says of it."""
    if wire.numel() != message.bytes:
        raise JobError(
            f"{message.producer!r} is {wire.numel()} bytes where the placement says "
            f"{message.bytes}",
            "solve again: the placement belongs to another capture",
        )


def lost(message: RankMessage | None, error: RuntimeError) -> JobError:
    """message: the one that was on its way; None at the barrier before a step."""
    doing = "at the barrier before a step"
    if message is not None:
        doing = f"with {message.producer!r} to or from {message.peer_device}"
    return JobError(
        f"lost a peer {doing}: {first_line(error)}",
        "look at the rank that failed first; a time limit means that its server or the network "
        "between is stuck",
    )


def first_line(error: Exception) -> str:
    """Without the place in gloo's sources."""
    line = (str(error).strip().splitlines() or [""])[0]
    return line.split("] ", 1)[-1] if line.startswith("[") else line
