"""Sends and receives messages over gloo.

gloo makes one TCP connection per pair of ranks, rail and process group, and takes rail `tag % K` of
the K in `GLOO_SOCKET_IFNAME="a,b"`. Each direction has its own groups: on a shared connection a
rank's large send would hold up the small answer that lets its peer begin to send. More groups make
more connections per rail. Receives are posted before the step begins, so that a send starts as soon
as its tensor exists, and parts may come in any order.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import MOST_TAG, RankMessage, RankMessages
from placewire.job.messages.send_queues import RailQueue, Waiting
from placewire.job.transport.outbox import Outbox
from placewire.job.transport.tcp_connections import Backlog, connected_ends, mark_answers
from placewire.job.transport.transport import (
    Watcher,
    check_size,
    first_line,
    lost,
    meet_before_step,
)

# Long enough for gloo to notice that nobody answers a receive, as _end_waits() needs it.
_AT_ONCE = timedelta(milliseconds=1)


class GlooTransport:
    """Every wait ends after the time limit given to connect(), or when a peer is lost. met: called
    whenever all ranks have met before a step.

    queues: they decide which part leaves next, by rail, "" inside the server.
    sockets: connections of a pair on each rail and in each direction.
    """

    def __init__(
        self, messages: RankMessages, queues: Mapping[str, RailQueue], sockets: int = 1
    ) -> None:
        self.sent_bytes: Counter[tuple[str, str]] = Counter()
        self.met: Callable[[], None] = lambda: None
        self._messages = messages
        self._sockets = sockets
        self._outbox = Outbox(self._post, queues, lost, self._end_waits)
        self._posted: dict[int, tuple[torch.Tensor, list[dist.Work]]] = {}
        self._groups: Mapping[tuple[bool, int], dist.ProcessGroup] = {}
        self._rank, self._world_size, self._rails = 0, 0, 1

    def connect(
        self,
        store: Store,
        rank: int,
        world_size: int,
        interfaces: tuple[str, ...],
        timeout_seconds: float,
        addresses: Mapping[tuple[str, str], str] | None = None,
        acknowledgement_dscp: int = 0,
    ) -> None:
        """To be called by all ranks at once. interfaces: in rail order. addresses: of all ranks'
        servers, by (server, rail). acknowledgement_dscp: of what this rank sends on connections on
        which it only receives."""
        os.environ["GLOO_SOCKET_IFNAME"] = ",".join(interfaces)
        self._rank, self._world_size, self._rails = rank, world_size, len(interfaces)
        timeout = timedelta(seconds=timeout_seconds)
        try:
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
            )
            groups = {}
            for upward in (True, False):
                senders = self.only_senders(upward)
                marked = [at for (server, _), at in (addresses or {}).items() if server in senders]
                for socket in range(self._sockets):
                    with _marked(marked, acknowledgement_dscp):
                        groups[upward, socket] = dist.new_group(timeout=timeout)
            self._groups = groups
        except (RuntimeError, ValueError) as error:
            raise JobError(
                f"the ranks cannot connect over {', '.join(interfaces)}: {first_line(error)}",
                "check that these interfaces exist and reach each other on every rank's server",
            ) from error

    def only_senders(self, upward: bool) -> set[str]:
        """The servers from which messages come in this direction, and to which none goes in it."""
        sends = (message for some in self._messages.sends.values() for message in some)
        sent_to = {message.peer_server for message in sends if message.upward == upward}
        come = {one.peer_server for one in self._messages.receives if one.upward == upward}
        return come - sent_to

    def expect(self, messages: RankMessages) -> None:
        """Sets the messages of a step, from the next step on, between the same ranks."""
        self._messages = messages

    def watch(self, backlog: Backlog) -> None:
        """From now on a part is under way until its receiver has it, not just the kernel."""
        self._outbox.backlog = backlog

    def report_to(self, watcher: Watcher) -> None:
        self._outbox.watcher = watcher

    def begin_step(self, told: Sequence[float] = ()) -> tuple[tuple[float, ...], ...]:
        try:
            for message in self._messages.receives:
                wire = torch.empty(message.bytes, dtype=torch.uint8)
                # The group's own method: dist.irecv takes longer for its checks than for the rest.
                works = [
                    self._groups[message.upward, part.socket].recv(
                        [wire[part.start : part.stop]], message.peer, part.tag
                    )
                    for part in message.parts
                ]
                self._posted[message.index] = (wire, works)
            numbers = meet_before_step(told)
        except RuntimeError as error:
            raise lost(None, error) from error
        self.met()
        return numbers

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        check_size(message, wire)
        self._outbox.send(message, wire)
        for part, rail in zip(message.parts, message.rail_names, strict=True):
            self.sent_bytes[message.peer_device, rail] += part.bytes

    def receive(self, message: RankMessage) -> torch.Tensor:
        wire, works = self._posted.pop(message.index)
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._outbox.error or lost(message, error) from error
        return wire

    def complete(self, message: RankMessage) -> None:
        self._outbox.complete(message)

    def end_step(self) -> None:
        self._outbox.complete_all()
        # A message that the program did not wait for must not be left over for the next step.
        for message in self._messages.receives:
            if message.index in self._posted:
                self.receive(message)

    def close(self) -> None:
        self._outbox.close()
        dist.destroy_process_group()

    def _post(self, part: Waiting, wire: torch.Tensor) -> dist.Work:
        message, cut = part.message, part.part
        group = self._groups[message.upward, cut.socket]
        return group.send([wire[cut.start : cut.stop]], message.peer, cut.tag)

    def _end_waits(self) -> None:
        """Ends the waits of the rank's main thread, which may wait for peers that are well.

        torch cannot cancel a receive; but a receive that runs into its time limit closes all
        connections of its group and rail, and every wait on these then fails.
        """
        nothing = torch.empty(1, dtype=torch.uint8)
        last_tag = (MOST_TAG - self._rails) // self._rails * self._rails
        for group in self._groups.values():
            for rail in range(self._rails):
                for peer in range(self._world_size):
                    try:
                        if peer != self._rank:
                            group.recv([nothing], peer, last_tag + rail).wait(_AT_ONCE)
                    except RuntimeError:
                        continue  # the lost peer's own connection, or the intended time limit


@contextmanager
def _marked(senders: list[str], dscp: int) -> Iterator[None]:
    """Marks what this rank sends to these addresses on the connections that the block makes."""
    older = {ends for ends, _ in connected_ends()} if dscp and senders else set()
    yield
    if dscp and senders:
        mark_answers(senders, dscp, older)
