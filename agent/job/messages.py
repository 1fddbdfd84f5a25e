"""Which messages one rank sends and receives, and how each is cut over the rails.

Sender and receiver derive the same cut and the same tags from the placement alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.placement import Message, Placement

# Parts begin at multiples of this, so that no element is cut and every part is aligned.
CUT_BYTES = 64


class JobError(ValueError):
    """What this rank was given does not fit together, or a peer was lost. Says what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Part:
    """Bytes [start, stop) of a message, on one rail. gloo takes rail `tag % rails`."""

    rail: int
    tag: int
    start: int
    stop: int


@dataclass(frozen=True)
class RankMessage:
    """One message as one of its two ranks sees it; index is its place in placement.messages.

    rail_names: what each part is counted under, "" inside one server.
    """

    index: int
    producer: str
    output: int
    bytes: int
    peer: int
    peer_device: str
    upward: bool
    parts: tuple[Part, ...]
    rail_names: tuple[str, ...]


@dataclass(frozen=True)
class RankMessages:
    """sends by producer, in the order in which they are posted; receives in producer order."""

    sends: Mapping[str, tuple[RankMessage, ...]]
    receives: tuple[RankMessage, ...]


def rank_messages(placement: Placement, device: str, rails: Sequence[str]) -> RankMessages:
    """rails: the names in the order of gloo's devices. Raises JobError for an unknown rail."""
    ranks = {name: rank for rank, name in enumerate(placement.devices_used)}
    if device not in ranks:
        raise JobError(f"the placement runs nothing on device {device!r}")
    turn = {
        (name, operator): position
        for name, order in placement.order.items()
        for position, operator in enumerate(order)
    }
    sends: dict[str, list[tuple[int, RankMessage]]] = {}
    receives: list[tuple[int, RankMessage]] = []
    for index, message in enumerate(placement.messages):
        if device not in (message.source, message.destination):
            continue
        if (message.source, message.producer) not in turn:
            raise JobError(
                f"message {index} is sent from {message.source}, where its producer "
                f"{message.producer!r} does not run",
                "check the placement file with `optimizer check`",
            )
        if device == message.source:
            ours = _seen_from(index, message, message.destination, ranks, rails)
            sends.setdefault(message.producer, []).append((message.rank, ours))
        else:
            ours = _seen_from(index, message, message.source, ranks, rails)
            receives.append((turn[message.source, message.producer], ours))
    return RankMessages(
        sends={k: tuple(m for _, m in sorted(v, key=_first)) for k, v in sends.items()},
        receives=tuple(m for _, m in sorted(receives, key=_first)),
    )


def _first(pair: tuple[int, RankMessage]) -> int:
    return pair[0]


def _seen_from(
    index: int,
    message: Message,
    peer: str,
    ranks: Mapping[str, int],
    rails: Sequence[str],
) -> RankMessage:
    for end in (message.source, message.destination):
        if end not in ranks:
            raise JobError(f"message {index} names device {end!r}, which runs no operator")
    if unknown := set(message.rails) - set(rails):
        raise JobError(
            f"message {index} uses rail {min(unknown)!r}; this rank has interfaces on "
            f"{', '.join(rails) or 'none'}",
            "give every rank an interface on every rail of the placement",
        )
    # Inside one server the kernel carries the message; it takes the first connection.
    shares = [message.rails.get(rail, 0.0) for rail in rails] if message.rails else [1.0]
    count = max(len(rails), 1)
    parts = cut(message.bytes, shares, first_tag=index * count)
    return RankMessage(
        index=index,
        producer=message.producer,
        output=message.output,
        bytes=message.bytes,
        peer=ranks[peer],
        peer_device=peer,
        upward=ranks[message.source] < ranks[message.destination],
        parts=parts,
        rail_names=tuple(rails[part.rail] if message.rails else "" for part in parts),
    )


def cut(size_bytes: int, shares: Sequence[float], first_tag: int) -> tuple[Part, ...]:
    """Consecutive parts in proportion to shares, which need not sum to one; none is empty."""
    total = sum(shares)
    parts = []
    start, so_far = 0, 0.0
    last = max((rail for rail, share in enumerate(shares) if share > 0), default=0)
    for rail, share in enumerate(shares):
        so_far += share
        stop = size_bytes
        if rail < last:
            stop = min(size_bytes, round(size_bytes * so_far / total / CUT_BYTES) * CUT_BYTES)
        if stop > start:
            parts.append(Part(rail, first_tag + rail, start, stop))
            start = stop
    return tuple(parts)
