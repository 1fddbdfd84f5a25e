"""Chooses which connection is closed where too many peers have not shown who they are. Pure.

A host that only holds connections open must not keep an agent out, or take the descriptors of those
that are in. So one address may have some such connections and all addresses together more, and for
each that is too many the oldest of the address with the most is closed: an honest peer shows within
a second who it is, and its own address has no other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


@dataclass(frozen=True)
class Limits:
    """unproven, unproven_each: connections of peers that have not shown who they are, in all and of
    one address. proven_each: connections of one certificate's name: an agent has
    two, more for a moment where it was cut off, and one for each reply that it sends at once after
    it was held up. The oldest is its poll, which must not be closed for them."""

    unproven: int
    unproven_each: int
    proven_each: int = 32

    def within(self, descriptors: int) -> Limits:
        """As many as leave half of the descriptors to peers that are in, and to everything else."""
        unproven = max(1, min(self.unproven, descriptors // 2))
        each = max(1, min(self.unproven_each, unproven // 2))
        return Limits(unproven, each, self.proven_each)


class Unproven(Generic[Connection]):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of: dict[str, OrderedDict[Connection, None]] = {}
        self._count = 0

    def add(self, address: str, connection: Connection) -> tuple[str, Connection] | None:
        """The connection, with its address, that must be closed for this one; it counts no more."""
        self._of.setdefault(address, OrderedDict())[connection] = None
        self._count += 1
        if len(self._of[address]) > self._limits.unproven_each:
            return self._oldest(address)
        if self._count > self._limits.unproven:
            return self._oldest(max(self._of, key=lambda one: len(self._of[one])))
        return None

    def remove(self, address: str, connection: Connection) -> None:
        """Nothing happens where it does not count any more."""
        own = self._of.get(address, OrderedDict())
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._of[address]

    def _oldest(self, address: str) -> tuple[str, Connection]:
        oldest = next(iter(self._of[address]))
        self.remove(address, oldest)
        return address, oldest
