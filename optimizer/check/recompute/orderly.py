"""Computes times where a message's arrival is known when it is sent: fixed rates, or no contention.

Each operator is visited once, when all times that it needs are known; devices keep their order.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable

from placewire.optimizer.check.recompute.facts import Facts, Times, parts, servers_of
from placewire.optimizer.check.recompute.network import over_rails
from placewire.optimizer.check.recompute.sharings import rules_of
from placewire.optimizer.placement import Message

# (message, when its producer finished) -> when it arrives. For each source device, the calls are in
# the order of sending, so that the function may keep first-come queues.
Travel = Callable[[Message, float], float]


def orderly_times(facts: Facts, travel: Travel) -> Times | None:
    """None where the devices' orders wait for each other for ever."""
    lists, device_of = facts.lists, facts.device_of
    start: dict[int, float] = {}
    finish: dict[int, float] = {}
    arrival: dict[tuple[int, str], float] = {}
    missing = list(facts.waits_for)
    position = dict.fromkeys(facts.order, 0)
    clock = dict.fromkeys(facts.order, 0.0)
    waiting = deque(facts.order)
    while waiting:
        device = waiting.popleft()
        order = facts.order[device]
        while position[device] < len(order) and not missing[order[position[device]]]:
            i = order[position[device]]
            position[device] += 1
            start[i] = clock[device]
            for e in lists.inputs[i]:
                start[i] = max(start[i], arrival.get((e, device), finish[lists.maker[e]]))
            finish[i] = clock[device] = start[i] + facts.seconds[i]
            for key in facts.messages_of.get(i, ()):
                arrival[key] = travel(facts.message[key], finish[i])
            for e in lists.outputs[i]:
                for c in lists.readers[e]:
                    missing[c] -= 1
                    if not missing[c] and device_of[c] != device:
                        waiting.append(device_of[c])
    return Times(start, finish, arrival) if len(finish) == len(lists.ids) else None


def queued_travel(facts: Facts) -> Travel:
    """`strict` and `even`: each (source device, destination device, rail) is a first-come channel
    of a fixed rate, which sets a message up while it carries the one before; the device pairs in
    use between two servers share that pair's rate equally."""
    free: dict[tuple[str, str, str], float] = defaultdict(float)
    latency = facts.placement.cluster.setup_latency_seconds

    def travel(message: Message, now: float) -> float:
        arrived = now
        for rail, bits in parts(message):
            if facts.on_nics(message):
                pair = servers_of(message)
                setup = latency
                rate = facts.rate.get((*pair, rail), 0.0) / facts.device_pairs_in_use[pair]
            else:
                setup, rate = facts.off_nics(message)
            channel = (message.source, message.destination, rail)
            free[channel] = max(free[channel], now + setup) + _divided(bits, rate)
            arrived = max(arrived, free[channel])
        return arrived

    return travel


def undisturbed_travel(facts: Facts) -> Travel:
    """`thesis` (3.5): p0 + bytes / b, with b the sum over the rails; nothing waits."""
    rates = over_rails(rules_of(facts.placement).undisturbed(facts.placement))
    latency = facts.placement.cluster.setup_latency_seconds

    def travel(message: Message, now: float) -> float:
        setup, rate = facts.off_nics(message)
        if facts.on_nics(message):
            setup, rate = latency, rates.get(servers_of(message), 0.0)
        return now + setup + _divided(message.bytes * 8, rate)

    return travel


def host_memory_travel(facts: Facts) -> Travel:
    """`msr`: through host memory; an accelerator pays to write and to read it, a CPU does not."""
    rate = facts.placement.cluster.intra_server_bits_per_second

    def travel(message: Message, now: float) -> float:
        if (link := facts.link.get((message.source, message.destination))) is not None:
            return now + link.setup_latency_seconds + message.bytes * 8 / link.rate_bits_per_second
        ends = (facts.type_of[message.source], facts.type_of[message.destination])
        return now + (len(ends) - ends.count("cpu")) * message.bytes * 8 / rate

    return travel


def _divided(bits: float, rate: float) -> float:
    return bits / rate if rate > 0 else math.inf
