"""Decides which receives are posted ahead, where a posted receive holds memory of the device.

NCCL matches the messages of a pair by order alone: both ends must post them in the same order, and
before a message is received all earlier ones from the same peer must have been posted. This module
only keeps count; it posts nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from placewire.job.messages.rank_messages import RankMessage


class ReceiveWindow:
    """messages: a step's receives in the order in which they are sent, over all peers.

    At most `limit_bytes` are posted and not yet consumed, except where a single message is larger,
    or a needed message stands behind others.
    """

    def __init__(self, messages: Sequence[RankMessage], limit_bytes: int) -> None:
        self._messages = tuple(messages)
        self._limit_bytes = limit_bytes
        self._waiting: deque[RankMessage] = deque()
        self._posted: set[int] = set()
        self._held_bytes = 0

    def begin(self) -> list[RankMessage]:
        """Returns what to post as a step begins."""
        self._waiting = deque(self._messages)
        self._posted, self._held_bytes = set(), 0
        return self.refill()

    def needed(self, message: RankMessage) -> list[RankMessage]:
        """Returns what else to post, in this order, before the message can be waited for."""
        posted = []
        while message.index not in self._posted:
            posted.append(self._post())
        return posted

    def consumed(self, message: RankMessage) -> None:
        """To be called when the message's memory no longer belongs to the transport."""
        self._held_bytes -= message.bytes

    def refill(self) -> list[RankMessage]:
        """Returns what to post now that there may be room."""
        posted = []
        while self._waiting and (
            not self._held_bytes or self._held_bytes + self._waiting[0].bytes <= self._limit_bytes
        ):
            posted.append(self._post())
        return posted

    def _post(self) -> RankMessage:
        message = self._waiting.popleft()
        self._posted.add(message.index)
        self._held_bytes += message.bytes
        return message
