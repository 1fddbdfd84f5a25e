"""The interface of a rank's network transport, and the transport of a job's only rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages


class Watcher(Protocol):
    """Gets reports of what leaves, while `on`. Times are of time.perf_counter."""

    on: bool

    def left(self, message: RankMessage, rail: str, started: float, finished: float) -> None:
        """A part of the message was handed over at `started`; at `finished` the kernel had it."""


class Transport(Protocol):
    """Raises JobError when a peer is lost."""

    sent_bytes: Counter[tuple[str, str]]  # by (destination device, rail)

    def report_to(self, watcher: Watcher) -> None:
        """To be called before the first step. Reports come from any thread, or never with NCCL."""

    def expect(self, messages: RankMessages) -> None:
        """Sets the messages of a step, from the next step on."""

    def begin_step(self, told: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
        """Posts the step's receives, and returns when all ranks have called it. told: numbers, as
        many on every rank, which are returned by rank; nothing is where there are none."""

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        """wire: uint8[bytes]; must not change before complete() or end_step() returns."""

    def receive(self, message: RankMessage) -> torch.Tensor:
        """Returns uint8[bytes]; to be called once per step and message."""

    def complete(self, message: RankMessage) -> None:
        """Returns when the message's bytes may change."""

    def end_step(self) -> None:
        """Completes all sends."""

    def close(self) -> None: ...


class Alone:
    """The transport of a job's only rank, which has no messages."""

    def __init__(self) -> None:
        self.sent_bytes: Counter[tuple[str, str]] = Counter()

    def report_to(self, watcher: Watcher) -> None:
        pass

    def expect(self, messages: RankMessages) -> None:
        pass

    def begin_step(self, told: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
        return (tuple(told),) if told else ()

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


def meet_before_step(told: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """The barrier of all ranks, over gloo; what Transport.begin_step returns."""
    if not told:
        dist.barrier()
        return ()
    own = torch.tensor(told, dtype=torch.float64)
    everybody = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, own)  # A rank gets the last numbers when all have called it.
    return tuple(tuple(one.tolist()) for one in everybody)


def check_size(message: RankMessage, wire: torch.Tensor) -> None:
    """Raises JobError where a value has not the size that the placement gives it."""
    if wire.numel() != message.bytes:
        raise JobError(
            f"{message.producer!r} is {wire.numel()} bytes where the placement says "
            f"{message.bytes}",
            "solve again: the placement belongs to another capture",
        )


def lost(message: RankMessage | None, error: RuntimeError) -> JobError:
    """message: the message that was on its way; None at the barrier before a step."""
    doing = "at the barrier before a step"
    if message is not None:
        doing = f"with {message.producer!r} to or from {message.peer_device}"
    return JobError(
        f"lost a peer {doing}: {first_line(error)}",
        "look at the rank that failed first; a time limit means that its server or the network "
        "between is stuck",
    )


def first_line(error: Exception) -> str:
    """Returns the first line of the message without gloo's source location."""
    line = (str(error).strip().splitlines() or [""])[0]
    return line.split("] ", 1)[-1] if line.startswith("[") else line
