"""Faults of every kind, struck at random steps that one seed decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """Where a step of a run is; a fault strikes only where it can happen."""

    EFFECT = "a change of kernel or database"
    READ = "a reading"
    DISK = "an operation of the disk"
    MESSAGE = "a message"
    WAIT = "nothing under way"
    UNDO = "the beginning of an undo"


class Fault(Enum):
    AGENT_KILLED = "agent killed"
    POWER_CUT = "power cut"
    CALL_FAILS = "driver call fails"
    CALL_DONE_AND_FAILED = "driver call done, answer lost"
    CALL_WITHOUT_EFFECT = "driver call without effect"
    UNREADABLE = "server not readable"
    MESSAGE_DROPPED = "message dropped"
    MESSAGE_DELAYED = "message delayed"
    MESSAGE_DUPLICATED = "message duplicated"
    MESSAGES_REORDERED = "messages reordered"
    MESSAGE_TRUNCATED = "message truncated"
    MESSAGE_MEANWHILE = "message during a change"
    CONTROLLER_LOST = "controller lost"
    DISK_FULL = "disk full"
    WRITE_NOT_DURABLE = "fsync fails"
    UNDO_DISK_FULL = "disk full while undoing"
    STATE_LOST = "state file lost"
    STATE_CUT = "state file cut"
    STATE_FLIPPED = "state file, one bit flipped"
    CLOCK_SET = "clock set"
    CLOCK_BEHIND = "clock behind at start"
    CLOCK_AHEAD = "clock ahead at start"
    NIC_VANISHES = "NIC deleted, made anew"
    NIC_MOVED = "NIC moved away, and back"
    NIC_RENAMED = "NIC renamed, and back"
    NIC_REPLACED = "NIC made anew, another MAC"
    SWITCH_RESTARTS = "ovs-vswitchd restarts"
    SWITCH_DIES = "ovs-vswitchd dies"
    OURS_EDITED = "others edit ours"
    THEIRS_MADE = "others make their own"
    FOREIGN_INSIDE = "others' inside ours"
    OWNER_USES_NIC = "owner uses a NIC given back"


_WORK = frozenset({Place.EFFECT, Place.READ, Place.DISK})
_ANY = _WORK | {Place.WAIT}
_MESSAGE = frozenset({Place.MESSAGE})
# fault: (the places where it strikes, after at most how many of them it begins, and at most how
# many of them in a row it lasts).
_HABITS: dict[Fault, tuple[frozenset[Place], int, int]] = {
    Fault.AGENT_KILLED: (_WORK, 250, 1),
    Fault.POWER_CUT: (_ANY, 250, 1),
    Fault.CALL_FAILS: (frozenset({Place.EFFECT}), 100, 20),
    Fault.CALL_DONE_AND_FAILED: (frozenset({Place.EFFECT}), 100, 2),
    Fault.CALL_WITHOUT_EFFECT: (frozenset({Place.EFFECT}), 100, 2),
    Fault.UNREADABLE: (frozenset({Place.READ}), 30, 8),
    Fault.MESSAGE_DROPPED: (_MESSAGE, 10, 2),
    Fault.MESSAGE_DELAYED: (_MESSAGE, 10, 2),
    Fault.MESSAGE_DUPLICATED: (_MESSAGE, 10, 2),
    Fault.MESSAGES_REORDERED: (_MESSAGE, 10, 1),
    Fault.MESSAGE_TRUNCATED: (_MESSAGE, 10, 1),
    Fault.MESSAGE_MEANWHILE: (frozenset({Place.EFFECT, Place.READ}), 100, 1),
    Fault.CONTROLLER_LOST: (_MESSAGE, 12, 1),
    Fault.DISK_FULL: (frozenset({Place.DISK}), 150, 60),
    Fault.WRITE_NOT_DURABLE: (frozenset({Place.DISK}), 150, 3),
    Fault.UNDO_DISK_FULL: (frozenset({Place.UNDO}), 3, 2),
    Fault.STATE_LOST: (_ANY, 250, 1),
    Fault.STATE_CUT: (_ANY, 250, 1),
    Fault.STATE_FLIPPED: (_ANY, 250, 1),
    Fault.CLOCK_SET: (_ANY, 250, 1),
    Fault.CLOCK_BEHIND: (_ANY, 250, 1),
    Fault.CLOCK_AHEAD: (_ANY, 250, 1),
    Fault.NIC_VANISHES: (_ANY, 250, 1),
    Fault.NIC_MOVED: (_ANY, 250, 1),
    Fault.NIC_RENAMED: (_ANY, 250, 1),
    Fault.NIC_REPLACED: (_ANY, 250, 1),
    Fault.SWITCH_RESTARTS: (_ANY, 250, 1),
    Fault.SWITCH_DIES: (_ANY, 250, 1),
    Fault.OURS_EDITED: (_ANY, 250, 2),
    Fault.THEIRS_MADE: (_ANY, 250, 2),
    Fault.FOREIGN_INSIDE: (_ANY, 250, 2),
    Fault.OWNER_USES_NIC: (_ANY, 5, 3),
}
NIC_FAULTS = frozenset({Fault.NIC_VANISHES, Fault.NIC_MOVED, Fault.NIC_RENAMED, Fault.NIC_REPLACED})
STATE_FAULTS = frozenset({Fault.STATE_LOST, Fault.STATE_CUT, Fault.STATE_FLIPPED})
CLOCK_FAULTS = frozenset({Fault.CLOCK_BEHIND, Fault.CLOCK_AHEAD})
# What is found at the agent's next start: it ends with the event.
_AT_START = STATE_FAULTS | CLOCK_FAULTS
# Faults that are events: they happen to the server beside the operation under way.
EVENTS = frozenset(
    {
        Fault.MESSAGE_MEANWHILE, Fault.CLOCK_SET, Fault.SWITCH_RESTARTS, Fault.SWITCH_DIES,
        Fault.OURS_EDITED, Fault.THEIRS_MADE, Fault.FOREIGN_INSIDE, Fault.OWNER_USES_NIC,
    }
) | NIC_FAULTS | _AT_START  # fmt: skip
MOST_FAULTS = 4


class AgentDied(BaseException):
    """The agent's process is gone, and none of its code may run any more."""


class PowerCut(AgentDied):
    """The whole machine has lost power."""


@dataclass
class _Planned:
    fault: Fault
    after: int
    lasts: int


class Striker:
    """Asked at every step of a run whether a fault strikes. happen: makes an event of EVENTS
    happen, and returns whether it could. kinds: the faults that may strike."""

    def __init__(
        self,
        rng: random.Random,
        happen: Callable[[Fault], bool],
        kinds: Sequence[Fault] = tuple(Fault),
    ) -> None:
        self._happen = happen
        self._planned = [_plan(rng, kinds) for _ in range(rng.randint(1, MOST_FAULTS))]
        self._busy = False
        self.stopped = False
        self.agent_is_dead = False
        self.struck: Counter[Fault] = Counter()
        self.story: list[str] = []

    def at(self, place: Place, what: str) -> Fault | None:
        """The fault that strikes at this step, or None. Raises AgentDied."""
        if self.agent_is_dead and place in _WORK:
            raise AgentDied
        if self.stopped or self._busy:
            return None
        found = None
        for planned in self._planned:
            if place not in _HABITS[planned.fault][0]:
                continue
            planned.after -= 1
            if planned.after < 0 and planned.lasts > 0 and (found is None or _is_event(planned)):
                struck = self._strike(planned, place, what)
                found = struck if struck is not None and not _is_event(planned) else found
        return found

    def _strike(self, planned: _Planned, place: Place, what: str) -> Fault | None:
        fault = planned.fault
        if fault in EVENTS:
            self._busy = True
            try:
                if not self._happen(fault):
                    return None  # It is not possible now, but may be at the next step.
            finally:
                self._busy = False
        planned.lasts -= 1
        self.struck[fault] += 1
        self.story.append(f"  FAULT {fault.value} at {place.value}: {what}")
        if fault is Fault.AGENT_KILLED or fault in _AT_START:
            self.agent_is_dead = True
            raise AgentDied
        if fault is Fault.POWER_CUT:
            self.agent_is_dead = True
            raise PowerCut
        return fault


class NoFaults(Striker):
    """Never strikes."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), lambda _: False)
        self.stopped = True


def _is_event(planned: _Planned) -> bool:
    return planned.fault in EVENTS


def _plan(rng: random.Random, kinds: Sequence[Fault]) -> _Planned:
    fault = rng.choice(kinds)
    _, span, longest = _HABITS[fault]
    return _Planned(fault, rng.randrange(span), rng.randint(1, longest))
