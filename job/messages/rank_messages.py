"""Which messages one rank sends and receives, and how each is cut over the rails.

Sender and receiver derive the same cut and the same tags from the placement alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from placewire.job.errors import JobError
from placewire.job.messages.cutting import Part, chunk_bytes, cut, tags_taken
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Message, Placement

# torch takes a tag as a signed 32-bit number. The last ones are not for messages.
MOST_TAG = 2**31 - 1


@dataclass(frozen=True)
class RankMessage:
    """One message as one of its two ranks sees it; index is its place in placement.messages.

    rail_names: what each part is counted under, "" inside one server. send_order: smaller is
    sent first.
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
    send_order: int = 0

    @property
    def peer_server(self) -> str:
        return server_of(self.peer_device)


@dataclass(frozen=True)
class RankMessages:
    """sends by producer, in the order in which they are posted; receives in producer order."""

    sends: Mapping[str, tuple[RankMessage, ...]]
    receives: tuple[RankMessage, ...]


def rank_messages(
    placement: Placement, device: str, rails: Sequence[str], sockets: int = 1
) -> RankMessages:
    """rails: the names in the order of gloo's devices; sockets: connections per rail and pair.

    Raises JobError for an unknown rail, and where the placement's parts do not fit together.
    """
    ranks = {name: rank for rank, name in enumerate(placement.devices_used)}
    if device not in ranks:
        raise JobError(f"the placement runs nothing on device {device!r}")
    turn = {
        (name, operator): position
        for name, order in placement.order.items()
        for position, operator in enumerate(order)
    }
    sends: dict[str, list[RankMessage]] = {}
    receives: list[tuple[int, RankMessage]] = []
    for index, (message, parts) in enumerate(_cuts(placement, rails, sockets)):
        if device not in (message.source, message.destination):
            continue
        if (message.source, message.producer) not in turn:
            raise JobError(
                f"message {index} is sent from {message.source}, where its producer "
                f"{message.producer!r} does not run",
                "check the placement file with `optimizer check`",
            )
        if device == message.source:
            ours = _seen_from(index, message, parts, message.destination, ranks, rails)
            sends.setdefault(message.producer, []).append(ours)
        else:
            ours = _seen_from(index, message, parts, message.source, ranks, rails)
            receives.append((turn[message.source, message.producer], ours))
    # Both by urgency and then by index where one producer has several: NCCL matches by order.
    return RankMessages(
        sends={
            k: tuple(sorted(v, key=lambda m: (m.send_order, m.index))) for k, v in sends.items()
        },
        receives=tuple(
            m
            for _, m in sorted(
                receives, key=lambda pair: (pair[0], pair[1].send_order, pair[1].index)
            )
        ),
    )


def _cuts(
    placement: Placement, rails: Sequence[str], sockets: int
) -> Iterator[tuple[Message, tuple[Part, ...]]]:
    """Every message with its parts. All ranks walk all messages: a message's tags begin where the
    one before ended."""
    chunks = _chunks(placement, rails)
    first_tag, count = 0, max(len(rails), 1)
    for index, message in enumerate(placement.messages):
        if unknown := set(message.rails) - set(rails):
            raise JobError(
                f"message {index} uses rail {min(unknown)!r}; this rank has interfaces on "
                f"{', '.join(rails) or 'none'}",
                "give every rank an interface on every rail of the placement",
            )
        if message.rails:
            shares = [message.rails.get(rail, 0.0) for rail in rails]
            pair = (server_of(message.source), server_of(message.destination))
            largest = None if chunks is None else chunks[pair]
            parts = cut(message.bytes, shares, first_tag, largest, sockets)
        else:
            # Inside one server the kernel carries the message; it takes the first connection.
            parts = (Part(0, first_tag, 0, message.bytes),) if message.bytes else ()
        yield message, parts
        first_tag += tags_taken(parts, first_tag, count)
        if first_tag >= MOST_TAG - 2 * count:
            raise JobError(
                f"message {index} has no tag left: the step is cut into over {MOST_TAG} parts",
                "use a placement with fewer or smaller messages",
            )


def _chunks(
    placement: Placement, rails: Sequence[str]
) -> Mapping[tuple[str, str], tuple[int, ...]] | None:
    """By (source, destination) server, per rail; None where messages leave in program order."""
    if not SHARINGS[placement.sharing].sends_most_urgent_first:
        return None
    rates = [
        {nic.rail: nic.rate_bits_per_second for nic in server.nics}
        for server in placement.cluster.servers
    ]
    names = [server.name for server in placement.cluster.servers]
    return {
        (names[s], names[t]): tuple(
            chunk_bytes(min(rates[s].get(rail, 0.0), rates[t].get(rail, 0.0))) for rail in rails
        )
        for s in range(len(names))
        for t in range(len(names))
    }


def _seen_from(
    index: int,
    message: Message,
    parts: tuple[Part, ...],
    peer: str,
    ranks: Mapping[str, int],
    rails: Sequence[str],
) -> RankMessage:
    for end in (message.source, message.destination):
        if end not in ranks:
            raise JobError(f"message {index} names device {end!r}, which runs no operator")
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
        send_order=message.send_order,
    )
