"""Sends and receives messages over NCCL. Unverified on several GPUs.

It was written against torch 2.13's documented behaviour; tests cover what needs no second GPU.
NCCL has no tags and matches messages of a pair in order: both ends therefore keep program order,
with one communicator per direction. Sends and receives run on the device: a send waits there for
what was computed before it, and a receive is posted from a side stream, because on the main stream
it would wait for computation that the host has enqueued but the device not reached. Between devices
NCCL cuts a message equally over all NICs.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.messages.receive_window import ReceiveWindow
from placewire.job.transport.nccl_environment import nccl_environment
from placewire.job.transport.transport import (
    Watcher,
    check_size,
    first_line,
    lost,
    meet_before_step,
)

UNVERIFIED = "NCCL transport: unverified on several GPUs"
WINDOW_BYTES = 256 * 1024 * 1024
_POLL_SECONDS = 0.0005


class NcclTransport:
    """rate_bits_per_second: of the fastest rail. sockets: connections of a pair on each rail, per
    helper thread of NCCL. window_bytes: the most that posted receives hold on the device. met:
    called whenever all ranks have met before a step.

    The host waits only at the end of a step, for each message at most the time limit given to
    connect(). Work on the device that never ends makes NCCL's own watchdog end the process.
    """

    def __init__(
        self,
        messages: RankMessages,
        device: torch.device,
        rate_bits_per_second: float,
        sockets: int = 1,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.sent_bytes: Counter[tuple[str, str]] = Counter()
        self.met: Callable[[], None] = lambda: None
        self._device, self._sockets = device, sockets
        self._rate_bits_per_second = rate_bits_per_second
        self._window_bytes = window_bytes
        self.expect(messages)
        self._groups: Mapping[bool, dist.ProcessGroup] = {}
        self._side = torch.cuda.Stream(device)
        self._posted: dict[int, tuple[torch.Tensor, dist.Work]] = {}
        self._taken: deque[tuple[RankMessage, torch.cuda.Event]] = deque()
        self._received: list[tuple[RankMessage, dist.Work]] = []
        self._pending: dict[int, tuple[RankMessage, torch.Tensor, dist.Work]] = {}
        self._timeout_seconds = 0.0

    def expect(self, messages: RankMessages) -> None:
        """Sets the messages of a step, from the next step on. After connect() they must be between
        the same pairs, because only these have a communicator."""
        self._messages = messages
        self._window = ReceiveWindow(messages.receives, self._window_bytes)

    def connect(
        self,
        store: Store,
        rank: int,
        world_size: int,
        interfaces: tuple[str, ...],
        timeout_seconds: float,
    ) -> None:
        """To be called by all ranks at once. interfaces: in rail order. The barrier before a step
        goes over gloo, which does not touch the device."""
        os.environ.update(nccl_environment(interfaces, self._rate_bits_per_second, self._sockets))
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join(interfaces)
        self._timeout_seconds = timeout_seconds
        timeout = timedelta(seconds=timeout_seconds)
        torch.cuda.set_device(self._device)
        try:
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
            )
            self._groups = {
                upward: dist.new_group(backend="nccl", timeout=timeout) for upward in (True, False)
            }
            self._make_communicators(rank)
        except (RuntimeError, ValueError) as error:
            raise JobError(
                f"NCCL cannot connect the ranks: {first_line(error)}",
                "check that every rank has a CUDA device of its own and that the interfaces reach "
                "each other on every rank's server",
            ) from error

    def _make_communicators(self, rank: int) -> None:
        """Sends one byte between all pairs, in an order that all ranks share: at a pair's first
        send or receive torch makes its communicator, and waits for the other end to do so too."""
        ours = [m for messages in self._messages.sends.values() for m in messages]
        pairs = {
            (min(rank, m.peer), max(rank, m.peer), m.upward)
            for m in (*ours, *self._messages.receives)
        }
        nothing = torch.zeros(1, dtype=torch.uint8, device=self._device)
        for low, high, upward in sorted(pairs):
            group = self._groups[upward]
            if rank == (low if upward else high):
                group.send([nothing], high if upward else low, 0).wait()
            else:
                group.recv([nothing], low if upward else high, 0).wait()
            torch.cuda.synchronize(self._device)

    def report_to(self, watcher: Watcher) -> None:
        """Does nothing: the host does not see when messages leave the device."""

    def begin_step(self, told: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
        try:
            self._post(self._window.begin())
            torch.cuda.synchronize(self._device)
            numbers = meet_before_step(told)
        except RuntimeError as error:
            raise lost(None, error) from error
        self.met()
        return numbers

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        check_size(message, wire)
        for index in [i for i, (_, _, work) in self._pending.items() if work.is_completed()]:
            del self._pending[index]
        try:
            work = self._groups[message.upward].send([wire], message.peer, 0)
        except RuntimeError as error:
            raise lost(message, error) from error
        self._pending[message.index] = (message, wire, work)
        for part, rail in zip(message.parts, message.rail_names, strict=True):
            self.sent_bytes[message.peer_device, rail] += part.bytes

    def receive(self, message: RankMessage) -> torch.Tensor:
        self._post(self._window.needed(message))
        wire, work = self._posted.pop(message.index)
        try:
            work.wait()  # the current stream waits, not the host
        except RuntimeError as error:
            raise lost(message, error) from error
        wire.record_stream(torch.cuda.current_stream(self._device))
        self._received.append((message, work))
        arrived = torch.cuda.Event()
        arrived.record()
        self._taken.append((message, arrived))
        self._release()
        self._post(self._window.refill())
        return wire

    def complete(self, message: RankMessage) -> None:
        """Lets the current stream wait, so that what is enqueued next may overwrite the message."""
        if message.index in self._pending:
            _, _, work = self._pending[message.index]
            try:
                work.wait()
            except RuntimeError as error:
                raise lost(message, error) from error

    def end_step(self) -> None:
        taken = {message.index for message, _ in self._received}
        for message in self._messages.receives:
            # A message that the program did not wait for must not be left over for the next step.
            if message.index not in taken:
                self.receive(message)
        deadline = time.monotonic() + self._timeout_seconds
        sent = [(message, work) for message, _, work in self._pending.values()]
        for message, work in (*sent, *self._received):
            self._finish(message, work, deadline)
        self._pending.clear()
        self._received.clear()
        torch.cuda.synchronize(self._device)
        self._release()

    def close(self) -> None:
        dist.destroy_process_group()

    def _post(self, messages: list[RankMessage]) -> None:
        for message in messages:
            with torch.cuda.stream(self._side):
                wire = torch.empty(message.bytes, dtype=torch.uint8, device=self._device)
                try:
                    work = self._groups[message.upward].recv([wire], message.peer, 0)
                except RuntimeError as error:
                    raise lost(message, error) from error
            self._posted[message.index] = (wire, work)

    def _release(self) -> None:
        """Frees the window's room of messages whose receive the device has finished."""
        while self._taken and self._taken[0][1].query():
            self._window.consumed(self._taken.popleft()[0])

    def _finish(self, message: RankMessage, work: dist.Work, deadline: float) -> None:
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise lost(message, RuntimeError(f"unfinished after {self._timeout_seconds:g} s"))
            time.sleep(_POLL_SECONDS)
        if (failed := work.exception()) is not None:
            raise lost(message, RuntimeError(str(failed)))
