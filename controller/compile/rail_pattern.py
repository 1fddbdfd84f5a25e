"""Which rail each of gloo's contexts is on, so that a script which knows of none uses all of them.

ProcessGroupGloo makes one context for each interface that GLOO_SOCKET_IFNAME names, and the k-th
collective of a group runs on context k modulo their number. A collective is never divided, so bytes
are only in proportion to the rails over many; and where every training step has the same few of
unequal size, simply taking turns would send all the large ones over one rail. An interface may be
named several times: the order here is such that whatever comes every P-th collective meets every
rail, for small P.
"""

from __future__ import annotations

from collections.abc import Sequence

# Each context has a connection to every other rank, and two threads.
MOST_CONTEXTS = 16
# Rails of equal rate but for rounding.
_EQUAL = 0.02


def rail_pattern(shares: Sequence[float]) -> tuple[int, ...]:
    """Rails by number, for shares above 0 that sum to 1.

    Equal ones: by the sum of the digits of k to the base of their number (for two, the sequence of
    Thue and Morse). Others: evenly spaced, over an odd length, which shares no factor with the
    commonest periods. A rail whose share is too small for one place in that gets none.
    """
    rails = len(shares)
    if rails == 1:
        return (0,)
    if max(shares) - min(shares) < _EQUAL:
        length = rails
        while length * rails <= MOST_CONTEXTS:
            length *= rails
        return tuple(_digit_sum(k, rails) % rails for k in range(length))
    tried = [_spaced(shares, length) for length in range(3, MOST_CONTEXTS, 2)]
    return min(tried, key=lambda pattern: _error(pattern, shares))


def pattern_shares(pattern: Sequence[int], rails: int) -> tuple[float, ...]:
    """By rail: what a long script sends there."""
    return tuple(pattern.count(rail) / len(pattern) for rail in range(rails))


def _spaced(shares: Sequence[float], length: int) -> tuple[int, ...]:
    found: list[int] = []
    for k in range(1, length + 1):
        behind = [share * k - found.count(rail) for rail, share in enumerate(shares)]
        found.append(behind.index(max(behind)))
    return tuple(found)


def _error(pattern: Sequence[int], shares: Sequence[float]) -> float:
    """How far the worst rail is off, in parts of its share."""
    given = pattern_shares(pattern, len(shares))
    return max(abs(found - share) / share for found, share in zip(given, shares, strict=True))


def _digit_sum(number: int, base: int) -> int:
    total = 0
    while number:
        number, digit = divmod(number, base)
        total += digit
    return total
