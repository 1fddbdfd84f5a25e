"""One rank that is followed: what it printed and reported, and what it may report next."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field

from pydantic import ValidationError

from placewire.controller.launch.launcher import RankProcess
from placewire.controller.launch.programs import TAIL_LINES
from placewire.job.contract.specification import (
    Carried,
    Failed,
    Finished,
    ProgramSpec,
    RankEvent,
    RankSpec,
    Resumed,
    Saved,
    ScriptSpec,
    StepDone,
    Validated,
    parse_rank_event,
)

# Beside its steps: that it started, resumed, failed, finished; notes; and measured paths.
_OTHER_EVENTS = 100
# What a rank reports is shown, and some of it is held to the job's end. A step has two events, one
# of which names a path.
_MOST_BYTES = 16 * 2**20
_MOST_BYTES_OF_STEP = 8192


@dataclass
class Followed:
    """tail: the rank's last lines beside its events. lines: how many lines of its output were read.
    readers: tasks that read what it prints, its output before its errors. next_step,
    checkpoint_step, validated, others, said_bytes: the next step that it may report, the last that
    is in a checkpoint, of which step how many batches are validated, how many other events it
    reported, and how long all of them were.
    was_ended: whether it was told to end.
    exited_seconds, failed_seconds: when it ended, and when it reported a failure (monotonic)."""

    process: RankProcess
    spec: ProgramSpec
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    lines: int = 0
    has_begun: bool = False
    starting_seconds: float = 0.0
    finished: bool = False
    next_step: int | None = None
    checkpoint_step: int = -1
    validated: tuple[int, int] = (0, 0)
    others: int = 0
    said_bytes: int = 0
    failure: Failed | None = None
    was_ended: bool = False
    readers: list[asyncio.Task[None]] = field(default_factory=list)
    exit: asyncio.Task[int] = field(init=False)
    exited_seconds: float = 0.0
    failed_seconds: float = math.inf

    @property
    def status(self) -> int | None:
        """The exit status; None while the rank runs."""
        return self.exit.result() if self.exit.done() else None

    def may_say(self, event: RankEvent, size_bytes: int) -> bool:
        """Whether this comes next. What a rank reports is bounded by what it was asked to do: its
        steps come one after another, and each of the others belongs to one of them."""
        steps = self.spec.steps if isinstance(self.spec, RankSpec) else 0
        if isinstance(event, Carried):  # Only the last one is held.
            return True
        if self.said_bytes + size_bytes > _MOST_BYTES + steps * _MOST_BYTES_OF_STEP:
            return False
        if isinstance(event, StepDone):
            if event.step >= steps or self.next_step not in (None, event.step):
                return False
            self.next_step = event.step + 1
        elif isinstance(event, Validated):
            asked = self.spec.validation if isinstance(self.spec, RankSpec) else None
            now = event.step, event.batches
            if asked is None or event.step > steps or event.batches > asked.batches:
                return False
            if now <= self.validated:
                return False
            self.validated = now
        elif isinstance(event, Resumed | Saved):
            if event.step > steps or event.step <= self.checkpoint_step:
                return False
            self.checkpoint_step = event.step
        else:
            self.others += 1
            if self.others > _OTHER_EVENTS + steps:
                return False
        self.said_bytes += size_bytes
        return True

    @property
    def has_failed(self) -> bool:
        return self.status is not None and (self.status != 0 or not self.finished)

    @property
    def ends_itself(self) -> bool:
        """Whether it tells that it failed, and then ends by itself: of a script's processes one has
        failed, and the others on its server are given the time in which they may save."""
        return isinstance(self.spec, ScriptSpec) and self.failure is not None


def event_of(spec: ProgramSpec, line: bytes) -> RankEvent | None:
    """None where the line is no event that this program can report: of itself, and of rails that it
    was given."""
    try:
        event = parse_rank_event(line)
    except ValidationError:
        return None
    named: set[str] = set()
    if isinstance(event, Carried):
        named = set(event.sent_bytes)
    elif isinstance(event, Finished):
        # Between devices of one server, what is sent goes over no rail.
        named = {one.rail for one in event.traffic} - {""}
    given = {one.rail for one in spec.rail_interfaces}
    return event if event.rank == spec.rank and named <= given else None
