"""The log of a MemoryServer's database: what a power cut leaves of its rows.

ovsdb-server answers once a transaction is in the page cache, and syncs its log only when it is
asked to. A power cut loses the last transactions since then, however many. Only the agent's are
lost here: what others write counts as synced, with all before it, so that they find their rows.
"""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

from tests.agent.memory_server import BridgeRow, MemoryServer, Qos


class _Rows(NamedTuple):
    """fields: of each row, which is brought back as the same object: others know theirs."""

    bridges: dict[str, BridgeRow]
    stray: list[Qos]
    fields: list[tuple[object, dict[str, Any]]]

    def are(self, others: _Rows) -> bool:
        """Whether all are the same rows, with the same in them. Rows are compared one by one, as
        one that was made anew may be equal to the one before it."""
        ours, theirs = ([id(row) for row, _ in rows.fields] for rows in (self, others))
        return ours == theirs and self == others


class MemoryLog:
    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        # What may be there after a power cut, oldest first; the first is certain.
        self._histories = [self._rows()]

    def begin(self) -> None:
        """To be called before each change by the agent."""
        if not (rows := self._rows()).are(self._histories[-1]):
            self._histories = [rows]

    def end(self) -> None:
        """To be called after each change by the agent."""
        if not (rows := self._rows()).are(self._histories[-1]):
            self._histories.append(rows)

    def sync(self) -> None:
        self._histories = [self._rows()]

    def cut_power(self, rng: random.Random) -> None:
        self.begin()
        kept = rng.choice(self._histories)
        self._server.bridges, self._server.stray = dict(kept.bridges), list(kept.stray)
        for row, fields in kept.fields:
            vars(row).update(_copied(fields))
        self.sync()

    def _rows(self) -> _Rows:
        bridges, stray = dict(self._server.bridges), list(self._server.stray)
        ports = [port for row in bridges.values() for port in row.ports.values()]
        used = [port.qos for port in ports if port.qos is not None]
        fields = [(row, _copied(vars(row))) for row in (*bridges.values(), *ports, *used, *stray)]
        return _Rows(bridges, stray, fields)


def _copied(fields: dict[str, Any]) -> dict[str, Any]:
    """The rows in the fields stay the same objects."""
    return {
        name: copy.copy(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }
