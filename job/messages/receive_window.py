"""How many receives may be posted ahead, where a posted receive holds memory of the device.

NCCL matches messages of one pair by order alone: both ends must post theirs in one order, and a
message that is needed has to have all before it from the same peer posted. Bookkeeping only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from placewire.job.messages.rank_messages import RankMessage


class ReceiveWindow:
    """messages: a step's receives in the order in which they are sent, over all peers.

    Posted and not yet consumed are at most `limit_bytes`, except where one alone is larger, or one
    that is needed stands behind others.
    """

    def __init__(self, messages: Sequence[RankMessage], limit_bytes: int) -> None:
        self._messages = tuple(messages)
        self._limit_bytes = limit_bytes
        self._waiting: deque[RankMessage] = deque()
        self._posted: set[int] = set()
        self._held_bytes = 0

    def begin(self) -> list[RankMessage]:
        """What to post as a step begins."""
        self._waiting = deque(self._messages)
        self._posted, self._held_bytes = set(), 0
        return self.refill()

    def needed(self, message: RankMessage) -> list[RankMessage]:
        """What else to post, in this order, before the message can be waited for."""
        posted = []
        while message.index not in self._posted:
            posted.append(self._post())
        return posted

    def consumed(self, message: RankMessage) -> None:
        """The message's memory is no longer the transport's."""
        self._held_bytes -= message.bytes

    def refill(self) -> list[RankMessage]:
        """What to post now that there may be room."""
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
