"""Cuts the bytes of one message into parts: over rails by shares, on a rail into chunks or stripes.

Sender and receiver derive the same parts and tags from the placement alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from placewire.optimizer.chunks import CUT_BYTES, aligned

# A smaller part is not striped over several sockets.
STRIPE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Part:
    """Bytes [start, stop) of a message, which gloo sends and receives as a unit.

    gloo takes rail `tag % rails`. socket: the number of the connection of the pair on that rail.
    """

    rail: int
    tag: int
    start: int
    stop: int
    socket: int = 0

    @property
    def bytes(self) -> int:
        return self.stop - self.start


def cut(
    size_bytes: int,
    shares: Sequence[float],
    first_tag: int,
    chunks: Sequence[int] | None = None,
    sockets: int = 1,
) -> tuple[Part, ...]:
    """Returns consecutive parts, none empty, in proportion to shares, which need not sum to one.

    chunks: the most bytes of a part, per rail; without it a rail's share is one part, or one part
    per socket. With K rails a part's tag is first_tag + rail + K * (its number on that rail).
    """
    total = sum(shares)
    parts: list[Part] = []
    start, so_far = 0, 0.0
    last = max((rail for rail, share in enumerate(shares) if share > 0), default=0)
    for rail, share in enumerate(shares):
        so_far += share
        stop = size_bytes
        if rail < last:
            stop = min(size_bytes, round(size_bytes * so_far / total / CUT_BYTES) * CUT_BYTES)
        if stop <= start:
            continue
        if chunks is not None:
            count = ceil((stop - start) / chunks[rail])
        else:
            count = sockets if stop - start >= STRIPE_BYTES else 1
        for number, (begin, end) in enumerate(_pieces(start, stop, count)):
            tag = first_tag + rail + len(shares) * number
            parts.append(Part(rail, tag, begin, end, number % sockets))
        start = stop
    return tuple(parts)


def tags_taken(parts: Sequence[Part], first_tag: int, rails: int) -> int:
    """Returns how far the next message's first tag is from this one's: a multiple of `rails`."""
    highest = max((part.tag for part in parts), default=first_tag)
    return (highest - first_tag) // rails * rails + rails


def _pieces(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """Returns at most `count` nearly equal pieces; all but the last are multiples of CUT_BYTES."""
    size = aligned(ceil((stop - start) / count))
    return [(begin, min(begin + size, stop)) for begin in range(start, stop, size)]
