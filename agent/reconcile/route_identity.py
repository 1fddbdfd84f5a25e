"""Tells which route a text of `ip route` means: two texts may mean one route. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_TYPES = (
    "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable",
    "prohibit", "throw", "nat",
)  # fmt: skip
_MAIN = "254"
_FAMILIES = ("inet", "inet6")


class Place(NamedTuple):
    """Where the kernel keeps a route: of two in one place it uses the first. table, metric: numbers
    as text."""

    table: str
    destination: str
    tos: str
    metric: str


class Identity(NamedTuple):
    """What makes it that route, beside what it asks of the packets (its MTU and the like) and who
    made it. ways: (gateway, interface) of each."""

    place: Place
    kind: str
    ways: tuple[tuple[str, str], ...]
    source: str


# As many as a server with many routes has over its NICs and bridges.
@lru_cache(maxsize=1 << 14)
def identity(route: str) -> Identity:
    """route: as `ip -N route` prints or accepts it; of IPv6, with ::/0 in the place of default."""
    words = route.split()
    kind = words.pop(0) if words and words[0] in _TYPES else "unicast"
    destination = words.pop(0) if words else ""
    said = dict(pairwise(words))
    place = Place(
        table=said.get("table", _MAIN),
        destination=_canonical(destination),
        tos=_number(said.get("tos", "0")),
        metric=said.get("metric", "0"),
    )
    return Identity(place, kind, tuple(_ways(words)), said.get("src", ""))


def destination_of(route: str) -> str:
    """Its destination, as it is printed."""
    words = route.split(maxsplit=2)
    return words[1] if words[0] in _TYPES and len(words) > 1 else words[0]


def identities(routes: Iterable[str]) -> frozenset[Identity]:
    return frozenset(map(identity, routes))


def is_of_v6(text: str) -> bool:
    """Whether a route or an address, as `ip` accepts it, is of IPv6. A route of IPv4 may have a
    gateway of IPv6."""
    return ":" in destination_of(text)


def _canonical(destination: str) -> str:
    if ":" in destination:
        return destination.removesuffix("/128")
    return "0.0.0.0/0" if destination == "default" else destination.removesuffix("/32")


def without_sources(routes: Iterable[str]) -> frozenset[Identity]:
    """What is left of IPv6 routes with a source where that address went: the kernel takes the
    source off them, and leaves the routes. (It removes routes of IPv4.)"""
    found = (identity(route) for route in routes if is_of_v6(route))
    return frozenset(one._replace(source="") for one in found if one.source)


def _ways(words: list[str]) -> Iterable[tuple[str, str]]:
    gateway, pairs = "", [*pairwise(words)]
    for at, (word, following) in enumerate(pairs):
        if word == "via":
            whole = following in _FAMILIES and at + 1 < len(pairs)
            gateway = pairs[at + 1][1] if whole else following
        elif word == "dev":
            yield gateway, following
            gateway = ""


def _number(word: str) -> str:
    with suppress(ValueError):
        return str(int(word, 0))
    return word
