"""Messages over gloo.

gloo makes one TCP connection per pair of ranks, rail and process group, and takes rail `tag % K` of
`GLOO_SOCKET_IFNAME="a,b"`. There is one group per direction: on a shared connection a rank's large
send would hold up the small answer that lets its peer begin to send. Receives are posted before the
step begins, so that a send starts as soon as its tensor exists.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from agent.job.messages import JobError, RankMessage, RankMessages


class Transport(Protocol):
    """What a rank's program needs of the network. Raises JobError when a peer is lost."""

    sent_bytes: Counter[tuple[str, str]]  # by (destination device, rail)

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


class GlooTransport:
    """Every wait ends after the time limit given to connect(), or when a peer dies."""

    def __init__(self, messages: RankMessages) -> None:
        self.sent_bytes: Counter[tuple[str, str]] = Counter()
        self._messages = messages
        self._pending: dict[int, tuple[torch.Tensor, list[dist.Work]]] = {}
        self._posted: dict[int, tuple[torch.Tensor, list[dist.Work]]] = {}
        self._groups: Mapping[bool, dist.ProcessGroup] = {}

    def connect(
        self,
        store: Store,
        rank: int,
        world_size: int,
        interfaces: tuple[str, ...],
        timeout_seconds: float,
    ) -> None:
        """All ranks at once; interfaces in rail order."""
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join(interfaces)
        timeout = timedelta(seconds=timeout_seconds)
        try:
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
            )
            self._groups = {upward: dist.new_group(timeout=timeout) for upward in (True, False)}
        except (RuntimeError, ValueError) as error:
            raise JobError(
                f"the ranks cannot connect over {', '.join(interfaces)}: {_first_line(error)}",
                "check that these interfaces exist and reach each other on every rank's server",
            ) from error

    def begin_step(self) -> None:
        for message in self._messages.receives:
            wire = torch.empty(message.bytes, dtype=torch.uint8)
            works = [
                self._work(
                    dist.irecv(
                        wire[part.start : part.stop],
                        message.peer,
                        group=self._groups[message.upward],
                        tag=part.tag,
                    )
                )
                for part in message.parts
            ]
            self._posted[message.index] = (wire, works)
        try:
            dist.barrier()
        except RuntimeError as error:
            raise _lost(None, error) from error

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        if wire.numel() != message.bytes:
            raise JobError(
                f"{message.producer!r} is {wire.numel()} bytes where the placement says "
                f"{message.bytes}",
                "solve again: the placement belongs to another capture",
            )
        try:
            works = [
                self._work(
                    dist.isend(
                        wire[part.start : part.stop],
                        message.peer,
                        group=self._groups[message.upward],
                        tag=part.tag,
                    )
                )
                for part in message.parts
            ]
        except RuntimeError as error:
            raise _lost(message, error) from error
        self._pending[message.index] = (wire, works)
        for part, rail in zip(message.parts, message.rail_names, strict=True):
            self.sent_bytes[message.peer_device, rail] += part.stop - part.start

    def receive(self, message: RankMessage) -> torch.Tensor:
        wire, works = self._posted.pop(message.index)
        self._wait(message, works)
        return wire

    def complete(self, message: RankMessage) -> None:
        if message.index in self._pending:
            _, works = self._pending.pop(message.index)
            self._wait(message, works)

    def end_step(self) -> None:
        for messages in self._messages.sends.values():
            for message in messages:
                self.complete(message)
        # A message that nobody here waited for must not be left over for the next step.
        for message in self._messages.receives:
            if message.index in self._posted:
                self.receive(message)

    def close(self) -> None:
        dist.destroy_process_group()

    def _wait(self, message: RankMessage, works: list[dist.Work]) -> None:
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise _lost(message, error) from error

    @staticmethod
    def _work(work: dist.Work | None) -> dist.Work:
        if work is None:
            raise AssertionError("this rank is a member of all its groups")
        return work


def _lost(message: RankMessage | None, error: RuntimeError) -> JobError:
    doing = "at the barrier before a step"
    if message is not None:
        doing = f"with {message.producer!r} to or from {message.peer_device}"
    return JobError(
        f"lost a peer {doing}: {_first_line(error)}",
        "look at the rank that failed first; a time limit means that its server or the network "
        "between is stuck",
    )


def _first_line(error: Exception) -> str:
    """Without the place in gloo's sources."""
    line = (str(error).strip().splitlines() or [""])[0]
    return line.split("] ", 1)[-1] if line.startswith("[") else line
