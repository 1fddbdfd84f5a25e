"""Reads which queueing disciplines somebody has set, on all interfaces.

They are read of the kernel itself: what `tc -j` prints of some kinds (hfsc and multiq are such) is
no JSON. Of each only its kind and place is looked at, never its options, so that one which nobody
here knows keeps nothing from being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyroute2 import IPRoute

_ROOT = 0xFFFFFFFF


class Discipline(NamedTuple):
    """A queueing discipline that somebody gave a handle. parent: as tc names it; "" for a root."""

    kind: str
    handle: str
    parent: str


def read_disciplines(names: Mapping[int, str]) -> dict[str, tuple[Discipline, ...]]:
    """By the interface's name. Those that the kernel attaches by itself have no handle, and are
    left out. names: of interfaces, by their index."""
    with IPRoute() as netlink:
        return of_messages(netlink.get_qdiscs(), names)


def of_messages(
    messages: Iterable[Any], names: Mapping[int, str]
) -> dict[str, tuple[Discipline, ...]]:
    """messages: as pyroute2 shows what the kernel tells. An index without a name is that of an
    interface that has come or gone meanwhile."""
    found: dict[str, tuple[Discipline, ...]] = {}
    for message in messages:
        name, handle, parent = names.get(message["index"]), message["handle"], message["parent"]
        if name is None or not handle:
            continue
        one = Discipline(
            str(message.get_attr("TCA_KIND")),
            f"{handle >> 16:x}:",
            "" if parent == _ROOT else _named(parent),
        )
        found[name] = (*found.get(name, ()), one)
    return found


def _named(number: int) -> str:
    """A class or discipline, as tc names it."""
    major, minor = f"{number >> 16:x}" if number >> 16 else "", number & 0xFFFF
    return f"{major}:{minor:x}" if minor else f"{major}:"
