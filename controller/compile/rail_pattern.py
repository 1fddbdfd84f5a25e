"""Spreads gloo's contexts over the rails, so that a script that knows of no rails uses all of them.

ProcessGroupGloo makes one context for each interface that GLOO_SOCKET_IFNAME names, and the k-th
collective of a group runs on context k modulo their number. A collective is never divided, so the
rails' bytes come in proportion to their rates only over many collectives. Where every training step
has the same few collectives of unequal size, simply taking turns would send all large ones over one
rail. An interface may be named several times; in the order made here, collectives that come every
P-th time meet every rail, for small P.
"""

from __future__ import annotations

from collections.abc import Sequence

# Each context has a connection to every other process, and two threads.
MOST_CONTEXTS = 16
# So many connections each process group has at most; a process may well have several groups.
MOST_CONNECTIONS = 1024
# Shares that differ by less are those of rails with the same rate, but for rounding.
_EQUAL = 0.02


def rail_pattern(shares: Sequence[float], processes: int = 2) -> tuple[int, ...]:
    """For each context, the number of its rail. shares: by rail, above 0; they sum to 1.
    processes: of the whole job; many of them have fewer contexts.

    For R equal shares, context k is on rail (digit sum of k to the base R) modulo R; for two rails
    this is the Thue-Morse sequence. For unequal shares, the places of a rail are evenly spaced over
    an odd length, which has no factor in common with the most frequent periods. A rail whose share
    is too small for one place gets none.
    """
    rails = len(shares)
    if rails == 1:
        return (0,)
    most = min(MOST_CONTEXTS, MOST_CONNECTIONS // max(processes - 1, 1))
    if max(shares) - min(shares) < _EQUAL:
        length = rails
        while length * rails <= most:
            length *= rails
        return tuple(_digit_sum(k, rails) % rails for k in range(length))
    tried = [_spaced(shares, length) for length in range(3, max(most, rails + 2, 4), 2)]
    return min(tried, key=lambda pattern: _error(pattern, shares))


def pattern_shares(pattern: Sequence[int], rails: int) -> tuple[float, ...]:
    """By rail, the part of its traffic that a long script sends there."""
    return tuple(pattern.count(rail) / len(pattern) for rail in range(rails))


def _spaced(shares: Sequence[float], length: int) -> tuple[int, ...]:
    found: list[int] = []
    for k in range(1, length + 1):
        behind = [share * k - found.count(rail) for rail, share in enumerate(shares)]
        found.append(behind.index(max(behind)))
    return tuple(found)


def _error(pattern: Sequence[int], shares: Sequence[float]) -> float:
    """The largest relative deviation of a rail from its share."""
    given = pattern_shares(pattern, len(shares))
    return max(abs(found - share) / share for found, share in zip(given, shares, strict=True))


def _digit_sum(number: int, base: int) -> int:
    total = 0
    while number:
        number, digit = divmod(number, base)
        total += digit
    return total
