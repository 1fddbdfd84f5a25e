"""Knows what `ip` prints for a NIC's own addresses and routes. Pure.

These texts are put back as arguments of `ip`, which takes more words than it prints: `oif` is
another word for `dev`, and the last one counts. Whoever may write to Open vSwitch can put such
words into a mark.
"""

from __future__ import annotations

import re
from itertools import pairwise
from shlex import join

_ADDRESS = r"[\da-fA-F.:]+(?:/\d+)?"
# The words of a route, by what follows each.
_NAMED = "dev|proto|scope|table|tos|realms?|pref|ttl-propagate"
_LOCKABLE = "mtu|advmss|rtt|rttvar|window|cwnd|ssthresh|reordering|hoplimit|initcwnd|initrwnd"
# Another program may lock these too; `ip` then says so, and cannot lock them.
_UNLOCKABLE = "metric|quickack|rto_min|fastopen_no_cookie"
_ROUTE = re.compile(
    rf"(?:(?:unicast|local|multicast|anycast|broadcast) )?(?:default|{_ADDRESS})"
    rf"(?: (?:via (?:inet6? )?{_ADDRESS}|src {_ADDRESS}|(?:{_NAMED}) \S+"
    rf"|(?:{_LOCKABLE}) (?:lock )?\d\S*|(?:{_UNLOCKABLE}) \d\S*|features(?: ecn| tcp_usec_ts)+"
    r"|congctl (?:lock )?\S+|onlink))*"
)
_OF_A_NIC = re.compile(
    rf"{_ADDRESS}(?: (?:peer {_ADDRESS}|broadcast {_ADDRESS}|(?:scope|label) \S+|metric \d+"
    r"|noprefixroute|nodad|home|autojoin|dynamic|preferred_lft 0))*"
)


def is_a_route(text: str) -> bool:
    """Whether it has only words that a route over one interface has."""
    return _ROUTE.fullmatch(text) is not None


def is_an_address(text: str) -> bool:
    """Whether it has only words that an address of a NIC has."""
    return _OF_A_NIC.fullmatch(text) is not None


def identity_of_address(command: str) -> tuple[str, ...]:
    """The words of an address, as `ip address add` accepts it, that name it to the kernel: an
    interface has no second one of these, whatever its broadcast address, label or flags are."""
    words = tuple(command.split())
    return words[:3] if len(words) > 1 and words[1] == "peer" else words[:1]


def named(command: str) -> tuple[str, ...]:
    """Returns the words that name an address, and `nodad` where it is set: an address that is given
    back has it for a moment, so that it works at once."""
    return (*identity_of_address(command), *(w for w in command.split() if w == "nodad"))


def quoted(words: str) -> str:
    """The words of a command that root is told to paste, each quoted where it must be: the names in
    it are others', and an interface may be called `a;reboot`."""
    return join(words.split())


def interfaces_of(route: str) -> set[str]:
    """The interfaces that the route leads through."""
    return {name for word, name in pairwise(route.split()) if word == "dev"}
