"""Computes times from event to event, for sharings under which transfers share the NICs.

Only groups in which a flow began or ended get new rates, so that large placements are affordable.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Hashable
from itertools import count

from placewire.optimizer.check.recompute.facts import Facts, Times, parts, servers_of
from placewire.optimizer.check.recompute.fairness import Flow, Shares

# (when, tie-break, what): what is an operator that finishes, or a flow with the version of it that
# finishes, or with _SET_UP where its set-up has ended.
Event = tuple[float, int, int | tuple[Flow, int]]
_SET_UP = -1
# A flow that would finish within this time of an event finishes with it: else rounding could
# interrupt a flow that has nothing left to send.
_INSTANT_SECONDS = 1e-9


def fluid_times(facts: Facts, sharing: Shares) -> Times | None:
    """None where some operators can never start."""
    run = _FluidRun(facts, sharing)
    run.to_the_end()
    complete = len(run.finish) == len(facts.lists.ids)
    return Times(run.start, run.finish, run.arrival) if complete else None


class _FluidRun:
    def __init__(self, facts: Facts, sharing: Shares) -> None:
        self.facts, self.sharing = facts, sharing
        self.now = 0.0
        self.start: dict[int, float] = {}
        self.finish: dict[int, float] = {}
        self.arrival: dict[tuple[int, str], float] = {}
        self._events: list[Event] = []
        self._number = count()
        self._missing = list(facts.waits_for)
        self._position = dict.fromkeys(facts.order, 0)
        self._busy = dict.fromkeys(facts.order, False)
        self._channels: dict[tuple[str, str, str], deque[Flow]] = defaultdict(deque)
        self._parts_left: dict[tuple[int, str], int] = {}
        self._changed: dict[Hashable, None] = {}
        self._transmitting: dict[Hashable, dict[Flow, None]] = defaultdict(dict)

    def to_the_end(self) -> None:
        for device in self.facts.order:
            self._start_next(device)
        while self._events:
            self.now = self._events[0][0]
            self._happen_now()
            while ended := self._ending_now():
                for flow in ended:
                    self._finish_flow(flow)
                self._happen_now()
            for group in self._changed:
                self._share(group)
            self._changed.clear()

    def _happen_now(self) -> None:
        while self._events and self._events[0][0] == self.now:
            what = heapq.heappop(self._events)[2]
            if isinstance(what, int):
                self._finish_operator(what)
                continue
            flow, version = what
            if version == _SET_UP:
                self.sharing.join(flow, self.now)
                self._changed[self.sharing.group(flow)] = None
            elif version == flow.version:
                self._has_sent(flow)

    def _has_sent(self, flow: Flow) -> None:
        """All of the flow, or what was granted of it."""
        if flow.counted_on_bits < flow.bits_left:
            # As much may be granted again, which has an end of its own.
            flow.granted_bits = flow.counted_on_bits = 0.0
            self._changed[self.sharing.group(flow)] = None
        else:
            self._finish_flow(flow)

    def _ending_now(self) -> list[Flow]:
        return [
            flow
            for group in self._changed
            for flow in self._transmitting[group]
            if flow.left_at(self.now) <= flow.rate * _INSTANT_SECONDS
        ]

    def _at(self, when: float, what: int | tuple[Flow, int]) -> None:
        if when != math.inf:
            heapq.heappush(self._events, (when, next(self._number), what))

    def _start_next(self, device: str) -> None:
        """Starts the next operator if the device is idle and the operator's inputs are there."""
        order, at = self.facts.order[device], self._position[device]
        if self._busy[device] or at == len(order) or self._missing[order[at]]:
            return
        self._busy[device] = True
        self._position[device] += 1
        self.start[order[at]] = self.now
        self._at(self.now + self.facts.seconds[order[at]], order[at])

    def _finish_operator(self, i: int) -> None:
        facts = self.facts
        home = facts.device_of[i]
        self.finish[i] = self.now
        self._busy[home] = False
        for key in facts.messages_of.get(i, ()):
            self._queue(key)
        for e in facts.lists.outputs[i]:
            for c in facts.lists.readers[e]:
                if (e, facts.device_of[c]) not in facts.message:
                    self._has_input(c)
        self._start_next(home)

    def _has_input(self, c: int) -> None:
        self._missing[c] -= 1
        if not self._missing[c]:
            self._start_next(self.facts.device_of[c])

    def _queue(self, key: tuple[int, str]) -> None:
        message = self.facts.message[key]
        cut = parts(message)
        self._parts_left[key] = len(cut)
        for rail, bits in cut:
            channel = (message.source, message.destination, rail)
            ends = (*servers_of(message), rail)
            flow = Flow(key[0], channel, ends, message.send_order, bits, since=self.now)
            if self.sharing.first_come or not self.facts.on_nics(message):
                self._channels[channel].append(flow)
                if len(self._channels[channel]) > 1:
                    continue
            self._set_up(flow)

    def _set_up(self, flow: Flow) -> None:
        """Begins the flow, which is first in its channel, as soon as it has been set up."""
        message = self.facts.message[flow.tensor, flow.channel[1]]
        if self.facts.on_nics(message):
            latency = self.facts.placement.cluster.setup_latency_seconds
            self._at(max(self.now, flow.since + latency), (flow, _SET_UP))
        else:
            latency, rate = self.facts.off_nics(message)
            begin = max(self.now, flow.since + latency)
            self._at(begin + flow.bits_left / rate, (flow, flow.version))

    def _finish_flow(self, flow: Flow) -> None:
        flow.version += 1
        key = (flow.tensor, flow.channel[1])
        if self.facts.on_nics(self.facts.message[key]):
            group = self.sharing.group(flow)
            self.sharing.leave(flow)
            del self._transmitting[group][flow]
            self._changed[group] = None
        queue = self._channels.get(flow.channel)
        if queue:
            queue.popleft()
            if queue:
                self._set_up(queue[0])
        self._parts_left[key] -= 1
        if self._parts_left[key] == 0:
            self.arrival[key] = self.now
            for c in self.facts.readers_on(*key):
                self._has_input(c)

    def _share(self, group: Hashable) -> None:
        rates = self.sharing.rates(group, self.now)
        transmitting = self._transmitting[group]
        for flow in [flow for flow in transmitting if flow not in rates]:
            self._set_rate(flow, 0.0)
            del transmitting[flow]
        for flow, rate in rates.items():
            transmitting[flow] = None
            if rate != flow.rate or flow.granted_bits != flow.counted_on_bits:
                self._set_rate(flow, rate)

    def _set_rate(self, flow: Flow, rate: float) -> None:
        flow.bits_left = flow.left_at(self.now)
        flow.rate, flow.since, flow.counted_on_bits = rate, self.now, flow.granted_bits
        flow.version += 1
        if rate > 0:
            bits = min(flow.bits_left, flow.granted_bits)
            self._at(self.now + bits / rate, (flow, flow.version))
