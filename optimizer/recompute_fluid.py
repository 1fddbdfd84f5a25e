"""Step time under unshaped sharing, in plain Python: the slow twin of the compiled simulation.

Parts of messages under way share the NICs max-min fairly, and all shares are worked out anew at
every event.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from optimizer.placement import Message
from optimizer.recompute_facts import INFINITY, Facts, Times

Limit = tuple[str, str, str]  # "transmit" or "receive", server, rail


@dataclass
class _Part:
    """One part of a message on its channel. bits_left counts down once the set-up is over."""

    tensor: int
    source: str
    destination: str
    rail: str
    bits_left: float
    setup_until: float = INFINITY
    rate: float = 0.0

    def end(self, now: float) -> float:
        if self.setup_until > now:
            return self.setup_until
        return now + self.bits_left / self.rate if self.rate > 0 else INFINITY


def fluid_times(facts: Facts) -> Times | None:
    """None where operators remain that can never start."""
    run = _FluidRun(facts)
    while run.start_operators() or run.running or run.heads():
        if not run.advance():
            return None
    complete = len(run.finish) == len(facts.graph.ids)
    return Times(run.start, run.finish, run.arrival) if complete else None


class _FluidRun:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.now = 0.0
        self.start: dict[int, float] = {}
        self.finish: dict[int, float] = {}
        self.arrival: dict[tuple[int, str], float] = {}
        self.running: dict[str, int] = {}
        self.position = dict.fromkeys(facts.order, 0)
        self.queues: dict[tuple[str, str, str], deque[_Part]] = defaultdict(deque)
        self.parts_left: dict[tuple[int, str], int] = defaultdict(int)
        self.missing = [0] * len(facts.graph.ids)
        for readers in facts.readers:
            for c in readers:
                self.missing[c] += 1

    def heads(self) -> list[_Part]:
        return [queue[0] for queue in self.queues.values() if queue]

    def start_operators(self) -> bool:
        """On each idle device the next of its order, if it has its inputs."""
        started = False
        for device, order in self.facts.order.items():
            at = self.position[device]
            if device not in self.running and at < len(order) and not self.missing[order[at]]:
                self.running[device] = order[at]
                self.position[device] += 1
                self.start[order[at]] = self.now
                started = True
        return started

    def advance(self) -> bool:
        """To the next event. False where there is none although something still runs."""
        heads = self.heads()
        sending = [part for part in heads if part.setup_until <= self.now]
        share_fairly(self.facts, sending)
        due = {d: self.start[i] + self.facts.seconds(i) for d, i in self.running.items()}
        then = min([*due.values(), *(part.end(self.now) for part in heads)])
        if then == INFINITY:
            return False
        # What is within a nanosecond of its end has ended: sums of differences are not exact.
        done = [part for part in sending if part.end(self.now) <= then + 1e-9]
        for part in sending:
            part.bits_left -= part.rate * (then - self.now)
        self.now = then
        for device in [d for d, at in due.items() if at <= then]:
            self._finish_operator(self.running.pop(device))
        for part in done:
            self._finish_part(part)
        return True

    def _finish_operator(self, i: int) -> None:
        self.finish[i] = self.now
        facts = self.facts
        for e in facts.outputs[i]:
            for c in facts.readers[e]:
                if (e, facts.device_of[c]) not in facts.message:
                    self.missing[c] -= 1
            for target in sorted({facts.device_of[c] for c in facts.readers[e]}):
                if (message := facts.message.get((e, target))) is not None:
                    self._queue(e, target, message)

    def _queue(self, e: int, target: str, message: Message) -> None:
        for rail in [r for r, share in message.rails.items() if share > 0] or [""]:
            bits = message.bytes * 8 * message.rails.get(rail, 1.0)
            part = _Part(e, message.source, target, rail, bits)
            self._append(part)
            self.parts_left[e, target] += 1

    def _append(self, part: _Part) -> None:
        queue = self.queues[part.source, part.destination, part.rail]
        if not queue:
            part.setup_until = self.now + self.facts.placement.cluster.setup_latency_seconds
        queue.append(part)

    def _finish_part(self, part: _Part) -> None:
        queue = self.queues[part.source, part.destination, part.rail]
        queue.popleft()
        if queue:
            latency = self.facts.placement.cluster.setup_latency_seconds
            queue[0].setup_until = self.now + latency
        key = (part.tensor, part.destination)
        self.parts_left[key] -= 1
        if self.parts_left[key] == 0:
            self.arrival[key] = self.now
            for c in self.facts.readers[part.tensor]:
                if self.facts.device_of[c] == part.destination:
                    self.missing[c] -= 1


def share_fairly(facts: Facts, sending: list[_Part]) -> None:
    """Sets each part's rate: the narrowest NIC's equal share first, then what the others leave."""
    capacity: dict[Limit, float] = {}
    uses: dict[int, tuple[Limit, Limit]] = {}
    for k, part in enumerate(sending):
        source, target = facts.server_of[part.source], facts.server_of[part.destination]
        if source == target:
            part.rate = facts.placement.cluster.intra_server_bits_per_second
            continue
        uses[k] = (("transmit", source, part.rail), ("receive", target, part.rail))
        for limit in uses[k]:
            capacity[limit] = facts.nic.get((limit[1], part.rail), 0.0)
    while uses:
        users: dict[Limit, list[int]] = defaultdict(list)
        for k, limits in uses.items():
            for limit in limits:
                users[limit].append(k)
        narrowest = min(users, key=lambda limit: capacity[limit] / len(users[limit]))
        level = capacity[narrowest] / len(users[narrowest])
        for k in users[narrowest]:
            sending[k].rate = level
            for limit in uses.pop(k):
                capacity[limit] = max(capacity[limit] - level, 0.0)
