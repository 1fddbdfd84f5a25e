"""Decides which servers measure their paths when, and with messages of which sizes.

All ranks go through the same exchanges. In one exchange every server talks to at most one other, on
one lane and in one direction, so that each measured path has its NICs to itself; pairs without a
common server measure at the same time. For each pair and direction small messages come first, then
several of three larger sizes, or, where a path is so slow that these would take far longer than its
share of the time, a few of two larger sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from placewire.optimizer.device_names import server_of
from placewire.optimizer.placement import Message, Placement

# The whole calibration takes about this long where paths are as fast as the placement says.
MEASURING_SECONDS = 8.0
# The smallest message: one of 0 bytes is not sent.
SMALL_BYTES = 1
# (fraction of the largest size, messages, how many of the first are not counted); _SMALL without
# the fraction. Connections warm up during the first messages.
_SMALL = (24, 4)
_LARGER = ((0.25, 7, 1), (0.5, 5, 0), (1.0, 7, 0))
_LARGER_IF_SLOW = ((0.25, 3, 1), (1.0, 2, 0))
# A path is slow where its larger messages would take this many times its share of the time.
_SLOW = 2
# The part of the time that larger messages get; the rest is for answers, small messages, and for
# ranks that wait for each other.
_FOR_LARGER = 0.8
# The least largest size: a quarter of it exceeds what a shaper lets pass at once after a pause.
_LEAST_BYTES = 32 * 1024
_MOST_BYTES = 16 * 1024 * 1024

DevicePair = tuple[str, str]


@dataclass(frozen=True)
class Exchange:
    """rails: the rails that each message is cut over. bytes: the size of each message from the
    first device of the pair to the second. messages: how many each source sends, one after the
    other, each answered with SMALL_BYTES; the first `warm_up` round trips do not count."""

    rails: tuple[str, ...]
    bytes: Mapping[DevicePair, int]
    messages: int
    warm_up: int


def calibrating_devices(placement: Placement) -> tuple[str, ...]:
    """The first device of every server, in rank order."""
    return tuple(f"{server.name}/0" for server in placement.cluster.servers if server.devices)


def exchanges(placement: Placement, rails: Sequence[str]) -> Iterator[Exchange]:
    """Yields the exchanges of every ordered pair of servers on every lane."""
    devices = calibrating_devices(placement)
    # Each rail is a lane of its own, or all rails are one where the backend does not choose a rail.
    lanes = [(rail,) for rail in rails] if placement.backend == "gloo" else [tuple(rails)]
    rounds = list(_rounds(devices))
    seconds = MEASURING_SECONDS / max(1, 2 * len(rounds) * len(lanes))
    for lane in lanes:
        for pairs in rounds:
            for ordered in (pairs, tuple((b, a) for a, b in pairs)):
                fitting = {p: _fitting_bytes(placement, p, lane, seconds) for p in ordered}
                slow = [pair for pair in ordered if _SLOW * fitting[pair] < _LEAST_BYTES]
                quick = [pair for pair in ordered if pair not in slow]
                for some, larger in ((quick, _LARGER), (slow, _LARGER_IF_SLOW)):
                    if some:
                        yield from _of_all_sizes({p: fitting[p] for p in some}, lane, larger)


def _of_all_sizes(
    fitting: Mapping[DevicePair, float],
    lane: tuple[str, ...],
    larger: Sequence[tuple[float, int, int]],
) -> Iterator[Exchange]:
    yield Exchange(lane, dict.fromkeys(fitting, SMALL_BYTES), *_SMALL)
    for part, messages, warm_up in larger:
        sizes = {
            pair: round(part * min(max(round(size), _LEAST_BYTES), _MOST_BYTES))
            for pair, size in fitting.items()
        }
        yield Exchange(lane, sizes, messages, warm_up)


def paths_from(
    device: str, placement: Placement, rails: Sequence[str]
) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Returns (destination device, lane) of every path that this device measures as the source."""
    return frozenset(
        (destination, exchange.rails)
        for exchange in exchanges(placement, rails)
        for source, destination in exchange.bytes
        if source == device
    )


def everybody(placement: Placement, rails: Sequence[str]) -> Exchange:
    """An exchange between all pairs of servers: from it ranks learn which connections to make."""
    pairs = combinations(calibrating_devices(placement), 2)
    return Exchange(tuple(rails), dict.fromkeys(pairs, SMALL_BYTES), 1, 0)


def exchange_placement(placement: Placement, exchange: Exchange) -> Placement:
    """Returns the exchange as a placement on the network of `placement`, with messages and their
    answers in turn: ranks derive parts and tags from it."""
    order: dict[str, list[str]] = {d: [f"idle on {d}"] for d in calibrating_devices(placement)}
    messages: list[Message] = []
    share = 1 / len(exchange.rails)
    for (source, destination), size in exchange.bytes.items():
        for number in range(exchange.messages):
            for sender, receiver, count in (
                (source, destination, size), (destination, source, SMALL_BYTES),
            ):  # fmt: skip
                producer = f"{sender} to {receiver}, {number}"
                order[sender].append(producer)
                messages.append(
                    Message(
                        producer=producer,
                        source=sender,
                        destination=receiver,
                        bytes=count,
                        send_order=len(messages),
                        rails=dict.fromkeys(exchange.rails, share),
                    )
                )
    return placement.model_copy(
        update={
            "operators": {name: device for device, names in order.items() for name in names},
            "order": {device: tuple(names) for device, names in order.items()},
            "messages": tuple(messages),
        }
    )


def _rounds(devices: Sequence[str]) -> Iterator[tuple[DevicePair, ...]]:
    """Yields each pair once, no device twice in a round: the circle method for tournaments."""
    ring: list[str | None] = [*devices, *([None] if len(devices) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield tuple((a, b) for a, b in pairs if a is not None and b is not None)
        ring.insert(1, ring.pop())


def _fitting_bytes(
    placement: Placement, pair: DevicePair, lane: Sequence[str], seconds: float
) -> float:
    """Returns the largest size with which all larger messages take _FOR_LARGER of `seconds`."""
    sizes = sum(part * messages for part, messages, _ in _LARGER)
    rate = sum(_rate(placement, pair, rail) for rail in lane)
    return rate / 8 * seconds * _FOR_LARGER / sizes


def _rate(placement: Placement, pair: DevicePair, rail: str) -> float:
    """Returns the pair's own rate where it has one, else the slower NIC's."""
    source, destination = (server_of(device) for device in pair)
    for a, b, on, rate in placement.rates_bits_per_second:
        if (a, b, on) == (source, destination, rail) and rate > 0:
            return rate
    return min(
        nic.rate_bits_per_second
        for server in placement.cluster.servers
        if server.name in (source, destination)
        for nic in server.nics
        if nic.rail == rail
    )
