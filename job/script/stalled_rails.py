"""Finds a rail that takes nothing of what a script's processes send on it.

The kernel sends again what was not acknowledged, and waits twice as long each time: after 0.2, 0.6,
1.4, 3, 6.2, 12.6, 25.4 seconds and so on, or half as long again where an answer takes 0.1 s, as is
usual behind a full queue. A rail that was down for 13 s is tried again after 25.4, one for 19 s
after 38.1. So a rail is given up only once it was tried after loss_seconds, and there was no answer
to that.

The kernel waits a quarter of an hour for a peer's acknowledgement, because it cannot tell a rail
that is down from a slow one, and gloo waits half an hour. A process that only computes, or is
stopped, is no such case: its kernel acknowledges what it gets.

A placed job's connections have TCP_USER_TIMEOUT instead (job/supervision/heartbeat.py), which runs
out some seconds after a lost rank is named. A script's processes are not ours: nothing is set on
their sockets, and there is no heartbeat to wait for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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


# In a look or two a connection may happen to be between two answers, however long they take.
_LEAST_LOOKS = 4
# One look may happen to come between what was sent again and its answer.
_LEAST_LOOKS_AT_A_TRY = 2
# The kernel waits no longer before it sends again (TCP_RTO_MAX).
_LONGEST_PAUSE_SECONDS = 120.0


@dataclass(frozen=True)
class Unanswered:
    """A connection whose last bytes were sent again, without an answer up to now."""

    own: str
    peer: str
    inode: int


@dataclass(frozen=True)
class _Waiting:
    """since: when it was first seen so. times: how often its bytes were sent again; times_at_loss:
    how often they had been when loss_seconds were over. looks_at_try: how often it was seen so
    since they were then sent again."""

    since: float
    looks: int
    times: int
    times_at_loss: int | None = None
    looks_at_try: int = 0


def parse_unanswered(said: str) -> dict[Unanswered, int]:
    """By connection, how often its last bytes were sent again. said: of `ss --tcp --numeric
    --extended --options --no-header --oneline`."""
    found = filter(None, map(_LINE.match, said.splitlines()))
    return {
        Unanswered(_address(o["own"]), _address(o["peer"]), int(o["inode"])): int(o["unanswered"])
        for o in found
        if int(o["unanswered"])
    }


def _address(shown: str) -> str:
    """[::ffff:10.7.0.1]%nic -> 10.7.0.1: sockets of both families have IPv4 peers, too."""
    return shown.partition("%")[0].strip("[]").removeprefix("::ffff:")


class StalledRails:
    """rails: of this server, each with its address and those of its peers: what a script sends to
    others is its own affair. To be asked every second or so."""

    def __init__(self, rails: Sequence[RailInterface], loss_seconds: float) -> None:
        self._rails = {rail.address: rail for rail in rails if rail.address and rail.peers}
        self._loss_seconds = loss_seconds
        self._waiting: dict[Unanswered, _Waiting] = {}

    def require_none(self, now_seconds: float) -> None:
        """Raises JobError where a connection of a descendant to a server on the same rail has had
        no answer for loss_seconds, and none to what was sent again after that, which the kernel
        does at the latest two minutes later. A look that fails is left out: it must end no
        training."""
        try:
            unanswered = self._unanswered() if self._rails else {}
        except (OSError, subprocess.SubprocessError):
            return
        self._waiting = {
            one: self._waited(one, times, now_seconds) for one, times in unanswered.items()
        }
        for one, waiting in self._waiting.items():
            waited = now_seconds - waiting.since
            is_tried = (
                waiting.looks_at_try >= _LEAST_LOOKS_AT_A_TRY
                or waited >= self._loss_seconds + _LONGEST_PAUSE_SECONDS
            )
            if is_tried and waiting.looks >= _LEAST_LOOKS:
                raise self._lost(one, waited)

    def _lost(self, one: Unanswered, waited_seconds: float) -> JobError:
        rail = self._rails[one.own]
        number = rail.peers.index(one.peer)
        ways = {  # to that server, one on each rail
            (own, other.peers[number])
            for own, other in self._rails.items()
            if number < len(other.peers)
        }
        stalled = {
            (waiting.own, waiting.peer)
            for waiting, so_far in self._waiting.items()
            if so_far.looks >= _LEAST_LOOKS
        }
        if len(ways) > 1 and ways <= stalled:
            others = ", ".join(sorted(peer for _, peer in ways if peer != one.peer))
            return JobError(
                f"nothing has arrived at {one.peer} on any rail for {waited_seconds:.0f} s (its "
                f"other addresses: {others}): the server may be down",
                "look whether that server runs, and whether this one reaches any other",
            )
        return JobError(
            f"rail {rail.rail} has carried nothing from {rail.interface} to {one.peer} for "
            f"{waited_seconds:.0f} s",
            "check the cables and NICs of both servers on that rail, and what is between",
        )

    def _waited(self, one: Unanswered, times: int, now_seconds: float) -> _Waiting:
        before = self._waiting.get(one)
        if before is None or times < before.times:  # It had an answer in between.
            return _Waiting(now_seconds, 1, times)
        now = replace(before, looks=before.looks + 1, times=times)
        if before.times_at_loss is None:
            is_over = now_seconds - before.since >= self._loss_seconds
            return replace(now, times_at_loss=times) if is_over else now
        is_tried = times > before.times_at_loss
        return replace(now, looks_at_try=before.looks_at_try + 1) if is_tried else now

    def _unanswered(self) -> dict[Unanswered, int]:
        sources = " or ".join(f"src {address}" for address in self._rails)
        # The PATH of the user there may be without it.
        program = shutil.which("ss", path=f"{os.defpath}:/usr/sbin:/sbin") or "ss"
        said = subprocess.run(
            [program, "--tcp", "--numeric", "--extended", "--options", "--no-header", "--oneline",
             f"( {sources} )"],
            capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=True,
        )  # fmt: skip
        found = {
            one: times
            for one, times in parse_unanswered(said.stdout).items()
            if (rail := self._rails.get(one.own)) is not None and one.peer in rail.peers
        }
        own = _inodes(descendants()) if found else set()
        return {one: times for one, times in found.items() if one.inode in own}


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
