"""Messages as a transport is given them, and what was sent of them."""

from __future__ import annotations

from placewire.job.messages.cutting import Part
from placewire.job.messages.rank_messages import RankMessage
from placewire.job.messages.send_queues import Waiting

MEGABYTE = 1_000_000


def message(index: int, size: int = MEGABYTE, device: str = "s2/0") -> list[Waiting]:
    """As it is added: its one part."""
    part = Part(0, index, 0, size)
    made = RankMessage(
        index=index, producer=f"p{index}", output=0, bytes=size, peer=1, peer_device=device,
        upward=True, parts=(part,), rail_names=("a",), send_order=index,
    )  # fmt: skip
    return [Waiting(made, part)]


class Sent:
    def wait(self) -> bool:
        return True
