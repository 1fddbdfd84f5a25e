"""Finds a rail that takes nothing of what a script's processes send on it.

The kernel waits a quarter of an hour for a peer's acknowledgement, because it cannot tell a rail
that is down from a slow one, and gloo waits half an hour. A process that only computes, or is
stopped, is no such case: its kernel acknowledges what it gets.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from placewire.job.contract.specification import RailInterface
from placewire.job.errors import JobError
from placewire.job.script.descendants import descendants

# Far more than `ss` takes.
_LONGEST_SECONDS = 10.0
# A line of `ss`: state, two queues, both ends; which timer runs, and how often what it sends went
# without an answer; the socket's inode.
_LINE = re.compile(
    r"\S+\s+\d+\s+\d+\s+(?P<own>\S+):\d+\s+(?P<peer>\S+):\d+\s.*"
    r"timer:\((?:on|persist),[^,)]*,(?P<unanswered>\d+)\).*\bino:(?P<inode>\d+)"
)


@dataclass(frozen=True)
class Unanswered:
    """A connection whose last bytes were sent again, without an answer up to now."""

    own: str
    peer: str
    inode: int


def parse_unanswered(said: str) -> set[Unanswered]:
    """said: of `ss --tcp --numeric --extended --options --no-header --oneline`."""
    found = filter(None, map(_LINE.match, said.splitlines()))
    return {Unanswered(o["own"], o["peer"], int(o["inode"])) for o in found if int(o["unanswered"])}


class StalledRails:
    """rails: of this server, each with its address. To be asked every second or so."""

    def __init__(self, rails: Sequence[RailInterface], loss_seconds: float) -> None:
        self._rails = {rail.address: rail for rail in rails if rail.address}
        self._loss_seconds = loss_seconds
        self._since: dict[Unanswered, float] = {}

    def require_none(self, now_seconds: float) -> None:
        """Raises JobError where a connection of a descendant has had no answer for loss_seconds."""
        unanswered = self._unanswered() if self._rails else set()
        self._since = {one: self._since.get(one, now_seconds) for one in unanswered}
        for one, since in self._since.items():
            if now_seconds - since >= self._loss_seconds:
                rail = self._rails[one.own]
                raise JobError(
                    f"rail {rail.rail} has carried nothing from {rail.interface} to {one.peer} "
                    f"for {now_seconds - since:.0f} s",
                    "check the cables and NICs of both servers on that rail, and what is between",
                )

    def _unanswered(self) -> set[Unanswered]:
        sources = " or ".join(f"src {address}" for address in self._rails)
        said = subprocess.run(
            ["ss", "--tcp", "--numeric", "--extended", "--options", "--no-header", "--oneline",
             f"( {sources} )"],
            capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=True,
        )  # fmt: skip
        found = parse_unanswered(said.stdout)
        return {one for one in found if one.inode in _inodes(descendants())} if found else found


def _inodes(pids: Collection[int]) -> set[int]:
    """Of all sockets that these processes have open."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # It ended meanwhile.
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # It was closed meanwhile.
                    name = entry.readlink().name
                    if name.startswith("socket:["):
                        found.add(int(name[len("socket:[") : -1]))
    return found
