"""Tells and records which connections were turned away and why, in bounded time, space and file."""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from placewire.visible import visible

# So many different refusals are told at once, and of one address; then one more after each pause.
_MOST_AT_ONCE = 256
_MOST_OF_ONE = 32
_PAUSE_SECONDS = 10.0
# How many refusals, and how many addresses, are remembered.
_MOST_KNOWN = 1024
_LONGEST = 300
# The file's name in a controller's state folder.
FILE = "refused.jsonl"
# At this size the file is renamed to FILE.1, in place of the former FILE.1.
_LARGEST_FILE_BYTES = 1024 * 1024


@dataclass
class _Allowance:
    """How many refusals may still be told; one more is allowed after each pause."""

    left: float
    most: int
    since_seconds: float

    def takes_one(self, now_seconds: float) -> bool:
        gained = (now_seconds - self.since_seconds) / _PAUSE_SECONDS
        self.left, self.since_seconds = min(self.most, self.left + gained), now_seconds
        if self.left < 1:
            return False
        self.left -= 1
        return True


class RefusedConnections:
    """file: gets a JSON object a line, readable by its owner alone; None: no file. say: called with
    each refusal as one line. clock: seconds. told: the latest of these lines."""

    def __init__(
        self,
        file: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._say, self._clock = file, say, clock
        self.told: deque[str] = deque(maxlen=_MOST_AT_ONCE)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._all = _Allowance(_MOST_AT_ONCE, _MOST_AT_ONCE, clock())
        self._of: OrderedDict[str, _Allowance] = OrderedDict()
        self._dropped = 0

    def note(self, address: str, why: str) -> None:
        """address: of the peer. why: may quote what the peer sent, so it is shortened, and what a
        terminal would obey is written as an escape. The same refusal is told once."""
        address, why = visible(address), _short(why)
        line = f"{address}: {why}"
        if line in self._known:
            return
        if not self._may_tell(address):
            self._dropped += 1
            return
        self._known[line] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        self.tell_dropped()
        self.told.append(line)
        self._say(f"turned away: {line}")
        self._record({"from": address, "why": why})

    def tell_dropped(self) -> None:
        """Says how many refusals were not told since the last one that was. To be called at last,
        too."""
        if self._dropped:
            self._say(f"turned away: {self._dropped} more, which are not told one by one")
            self._record({"not_told": self._dropped})
        self._dropped = 0

    def _may_tell(self, address: str) -> bool:
        """One address cannot use up what may be told of all."""
        now = self._clock()
        own = self._of.setdefault(address, _Allowance(_MOST_OF_ONE, _MOST_OF_ONE, now))
        self._of.move_to_end(address)
        if len(self._of) > _MOST_KNOWN:
            self._of.popitem(last=False)
        return own.takes_one(now) and self._all.takes_one(now)

    def _record(self, row: dict[str, object]) -> None:
        if self._file is None:
            return
        try:
            _append(self._file, {"unix_seconds": time.time(), **row})
        except OSError as error:
            self._say(f"{self._file}: this refusal could not be recorded: {error.strerror}")


def _short(text: str) -> str:
    return visible(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def _append(file: Path, row: dict[str, object]) -> None:
    if file.exists() and file.stat().st_size > _LARGEST_FILE_BYTES:
        file.replace(file.with_name(file.name + ".1"))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
