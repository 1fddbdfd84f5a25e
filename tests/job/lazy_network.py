"""Runs several ranks' programs in one process, over a transport as unkind as gloo may be.

One rank runs at a time, until it waits for a message. A message is not copied when it is sent, but
as late as allowed: when its sender completes it, or when its receiver takes it. A parameter that
is overwritten too early is therefore seen by the receiver.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import torch

from placewire.job.messages.rank_messages import RankMessage
from placewire.job.placed.lower import RankProgram


class Mailbox:
    """The messages on their way; shared by the ranks of one run."""

    def __init__(self) -> None:
        self.turn = threading.Condition()
        self.pending: dict[int, torch.Tensor] = {}
        self.copied: dict[int, torch.Tensor] = {}


class MailboxTransport:
    def __init__(self, box: Mailbox) -> None:
        self.box = box
        self.sent_bytes: Counter[tuple[str, str]] = Counter()
        self.mine: list[RankMessage] = []

    def begin_step(self) -> None:
        self.mine = []

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        assert wire.numel() == message.bytes
        self.mine.append(message)
        self.box.pending[message.index] = wire
        self.box.turn.notify_all()

    def receive(self, message: RankMessage) -> torch.Tensor:
        box = self.box
        arrived = box.turn.wait_for(
            lambda: message.index in box.pending or message.index in box.copied, timeout=300
        )
        assert arrived, f"nobody sent {message.producer}"
        self._copy(message)
        return box.copied.pop(message.index)

    def complete(self, message: RankMessage) -> None:
        self._copy(message)

    def end_step(self) -> None:
        for message in self.mine:
            self._copy(message)

    def close(self) -> None:
        pass

    def _copy(self, message: RankMessage) -> None:
        if message.index in self.box.pending:
            self.box.copied[message.index] = self.box.pending.pop(message.index).clone()


def run_step(
    box: Mailbox,
    ranks: Sequence[tuple[RankProgram, MailboxTransport]],
    batch: tuple[torch.Tensor, ...],
    step: int,
) -> float:
    """Returns the loss, from the rank that has it."""
    results: dict[int, dict[str, torch.Tensor]] = {}

    def run(rank: int) -> None:
        program, transport = ranks[rank]
        with box.turn, torch.no_grad():
            transport.begin_step()
            program.tell(step)
            results[rank] = program.module(*(batch[position] for position in program.inputs))
            transport.end_step()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(ranks), "a rank failed"
    losses = [float(found["loss"]) for found in results.values() if "loss" in found]
    assert len(losses) == 1
    return losses[0]
