"""Derives from a placement which messages one rank sends and receives, and how each is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placewire.job.errors import JobError
from placewire.job.messages.cutting import Part, cut, tags_taken
from placewire.optimizer.chunks import LEAST_CHUNK_BYTES, WINDOW_CHUNKS, pair_window_bytes
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Message, Placement, Sent

# torch takes a tag as a signed 32-bit number. The last tags are not for messages.
MOST_TAG = 2**31 - 1


@dataclass(frozen=True)
class RankMessage:
    """One message as one of its two ranks sees it.

    index: the message's place in placement.messages. bundled: tensors that lie before the
    producer's own. bytes: of all. upward: whether the receiver's rank is larger. rail_names: the
    rail of each part, "" inside one server. send_order: smaller is sent first.
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
    bundled: tuple[Sent, ...] = ()

    @property
    def tensors(self) -> tuple[Sent, ...]:
        """All tensors of the message, in the order in which they lie in it."""
        own = self.bytes - sum(one.bytes for one in self.bundled)
        return (*self.bundled, Sent(self.producer, self.output, own))

    @property
    def peer_server(self) -> str:
        return server_of(self.peer_device)


@dataclass(frozen=True)
class RankMessages:
    """sends: by producer, in the order of posting. receives: in the order of their producers."""

    sends: Mapping[str, tuple[RankMessage, ...]]
    receives: tuple[RankMessage, ...]


def of_all(steps: Iterable[RankMessages]) -> RankMessages:
    """The messages of several steps, to connect all ranks that ever talk."""
    sends: dict[str, tuple[RankMessage, ...]] = {}
    receives: list[RankMessage] = []
    for one in steps:
        for producer, some in one.sends.items():
            sends[producer] = (*sends.get(producer, ()), *some)
        receives += one.receives
    return RankMessages(sends, tuple(receives))


def rank_messages(
    placement: Placement,
    device: str,
    rails: Sequence[str],
    sockets: int = 1,
    devices: Sequence[str] = (),
) -> RankMessages:
    """rails: names in the order of gloo's devices. sockets: connections per rail and pair. devices:
    those of all ranks, where the placement leaves some of them without an operator.

    Raises JobError for an unknown rail, and where the placement contradicts itself.
    """
    ranks = {name: rank for rank, name in enumerate(devices or placement.devices_used)}
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
        _check_bundled(index, message, turn)
        for end in (message.source, message.destination):
            if end not in ranks:
                raise JobError(f"message {index} names device {end!r}, which runs no operator")
        peer = message.destination if device == message.source else message.source
        ours = RankMessage(
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
            bundled=message.bundled,
        )
        if device == message.source:
            sends.setdefault(message.producer, []).append(ours)
        else:
            receives.append((turn[message.source, message.producer], ours))

    # Both ends order one producer's messages alike: NCCL matches messages by order.
    def urgency(message: RankMessage) -> tuple[int, int]:
        return message.send_order, message.index

    receives.sort(key=lambda pair: (pair[0], urgency(pair[1])))
    return RankMessages(
        sends={producer: tuple(sorted(some, key=urgency)) for producer, some in sends.items()},
        receives=tuple(message for _, message in receives),
    )


def _check_bundled(index: int, message: Message, turn: Mapping[tuple[str, str], int]) -> None:
    """turn: where each operator stands in its device's order, by (device, operator)."""
    last = turn[message.source, message.producer]
    for one in message.bundled:
        if turn.get((message.source, one.producer), last) >= last:
            raise JobError(
                f"message {index} bundles the tensor of {one.producer!r}, which does not run on "
                f"{message.source} before {message.producer!r}, after which the message is sent",
                "check the placement file with `optimizer check`",
            )
    # The producer's own tensor has the bytes that the bundled ones leave.
    if message.bundled and min(one.bytes for one in message.tensors) < 0:
        raise JobError(
            f"message {index} says {message.bytes} bytes, of which its bundled tensors' "
            f"{', '.join(str(one.bytes) for one in message.bundled)} bytes are no part",
            "check the placement file with `optimizer check`",
        )


def _cuts(
    placement: Placement, rails: Sequence[str], sockets: int
) -> Iterator[tuple[Message, tuple[Part, ...]]]:
    """Yields every message with its parts. Each rank goes through all messages, because the tags
    of a message begin where those of the message before end."""
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
            # Inside one server the kernel carries the message over the first connection.
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
    """Returns the most bytes of a chunk on each rail, by (source, destination) server; None where
    messages leave in program order and are not cut into chunks."""
    if not SHARINGS[placement.sharing].sends_most_urgent_first:
        return None
    nics = {s.name: {nic.rail: nic for nic in s.nics} for s in placement.cluster.servers}
    return {
        (a, b): tuple(
            pair_window_bytes(ours[r], theirs[r]) // WINDOW_CHUNKS
            if r in ours and r in theirs
            else LEAST_CHUNK_BYTES  # no message takes a rail that one of the two lacks
            for r in rails
        )
        for a, ours in nics.items()
        for b, theirs in nics.items()
    }
