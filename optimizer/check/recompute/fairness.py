"""Rates of the flows under way, with one class for each sharing that lets flows share the network.

Flows of different rails never share anything.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from placewire.optimizer.check.recompute import network
from placewire.optimizer.placement import Placement

Key = TypeVar("Key")
# Events that are less than this apart happen at once; the difference is rounding.
_INSTANT_SECONDS = 1e-9
# ("transmit" or "receive", server), or a pod's uplink in one direction.
Limit = tuple[str, str]


@dataclass(eq=False)
class Flow:
    """The part of a message that travels over one rail. rate: bits per second from the time `since`
    on; began: since when it has had one; version: counts the changes of rate, so that an outdated
    end is recognised."""

    tensor: int
    channel: tuple[str, str, str]
    pair: network.PairKey
    send_order: int
    bits_left: float
    rate: float = 0.0
    since: float = 0.0
    began: float = math.inf
    version: int = 0
    over: bool = False

    def left_at(self, now: float) -> float:
        return max(0.0, self.bits_left - self.rate * (now - self.since))


class Shares(ABC):
    """Keeps the flows under way in groups that share nothing with each other."""

    # Whether the flows of one channel (source device, destination device, rail) wait for each
    # other, in the order in which they were queued.
    first_come: ClassVar[bool] = True

    def __init__(self, placement: Placement) -> None:
        self._usable = network.usable_rates(placement)
        self._uplinks = network.Uplinks(placement)
        self._under_way: dict[Hashable, dict[Flow, None]] = defaultdict(dict)

    def group(self, flow: Flow) -> Hashable:
        return flow.pair[2]

    def join(self, flow: Flow, now: float) -> None:
        self._under_way[self.group(flow)][flow] = None

    def leave(self, flow: Flow) -> None:
        del self._under_way[self.group(flow)][flow]

    def _passed(self, flow: Flow) -> tuple[network.Crossing, ...]:
        return self._uplinks.passed(*flow.pair[:2])

    def _limits(self, flow: Flow) -> tuple[Limit, ...]:
        source, target, _ = flow.pair
        return ("transmit", source), ("receive", target), *self._passed(flow)

    @abstractmethod
    def rates(self, group: Hashable) -> Mapping[Flow, float]:
        """Bits per second of each flow of the group that transmits; its other flows wait."""


class MaxMin(Shares):
    """`unshaped`: a rail's flows and the neighbours of its NICs share the NICs max-min fairly."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._nics = network.nic_rates(placement)
        self._wanted = network.neighbours(placement)

    def rates(self, group: Hashable) -> dict[Flow, float]:
        flows, rail = list(self._under_way[group]), str(group)
        ends = [self._limits(flow) for flow in flows]
        capacity, wanted = dict[Limit, float](), dict[Limit, float]()
        for flow in flows:
            source, target, _ = flow.pair
            for limit in (("transmit", source), ("receive", target)):
                capacity[limit] = self._nics.get((limit[1], rail), 0.0)
                wanted[limit] = self._wanted.get((limit[1], rail), 0.0)
            for crossing in self._passed(flow):
                capacity[crossing] = self._uplinks.most(crossing, rail)
        return dict(zip(flows, progressive_filling(ends, capacity, wanted), strict=True))


class MinimumsWithLending(Shares):
    """`guarantee`: each pair has its minimum; what a sender has left over is lent equally, to each
    pair at most up to its ceiling. The ceilings are such that no receiver is oversubscribed."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._least = network.recorded_rates(placement)
        self._most = network.ceilings(placement)

    def group(self, flow: Flow) -> network.NicKey:
        return flow.pair[0], flow.pair[2]

    def rates(self, group: Hashable) -> dict[Flow, float]:
        assert isinstance(group, tuple)
        of_pair: dict[network.PairKey, list[Flow]] = defaultdict(list)
        for flow in self._under_way[group]:
            of_pair[flow.pair].append(flow)
        least = {pair: self._least.get(pair, 0.0) for pair in of_pair}
        room = {pair: self._most.get(pair, 0.0) - rate for pair, rate in least.items()}
        lent = equal_shares(self._usable.get(group, 0.0) - sum(least.values()), room)
        return {
            flow: (least[pair] + lent[pair]) / len(flows)
            for pair, flows in of_pair.items()
            for flow in flows
        }


class MostUrgentFirst(Shares):
    """`job`: on each rail a sender transmits only its most urgent flow, and a receiver divides its
    NIC fairly between senders. A sender that its receiver limits gives the rest of its rate to its
    next most urgent flow for another receiver, in rounds. A flow that overtakes another one to the
    same receiver transmits first what was handed over of that one, at most a window; what has no
    more left than that is not overtaken, and transmits on behalf of the most urgent one."""

    first_come = False

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._windows = network.windows(placement)
        # rail -> sender -> receiver
        self._lanes: dict[str, dict[str, dict[str, _Lane]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(_Lane))
        )

    def join(self, flow: Flow, now: float) -> None:
        source, target, rail = flow.pair
        ends = (self._windows.get((server, rail), 0.0) for server in (source, target))
        self._lanes[rail][source][target].add(flow, now, min(ends))

    def leave(self, flow: Flow) -> None:
        source, target, rail = flow.pair
        flow.over = True
        self._lanes[rail][source][target].next_one()

    def rates(self, group: Hashable) -> dict[Flow, float]:
        rail = str(group)
        turns: dict[str, list[Flow]] = {}
        for source, lanes in self._lanes[rail].items():
            busy = [(lane.urgency, lane.flow) for lane in lanes.values() if lane.flow is not None]
            if busy:
                turns[source] = [flow for _, flow in sorted(busy, key=lambda one: one[0])]
        left: dict[Limit, float] = {}
        for source, flows in turns.items():
            left["transmit", source] = self._usable.get((source, rail), 0.0)
            for flow in flows:
                left["receive", flow.pair[1]] = self._usable.get((flow.pair[1], rail), 0.0)
                for crossing in self._passed(flow):
                    left[crossing] = self._uplinks.most(crossing, rail)
        found: dict[Flow, float] = {}
        while active := [
            flows.pop(0) for s, flows in turns.items() if flows and left["transmit", s] > 0
        ]:
            ends = [self._limits(flow) for flow in active]
            rates = progressive_filling(ends, left, {})
            for flow, both, rate in zip(active, ends, rates, strict=True):
                found[flow] = rate
                for limit in both:
                    remaining = left[limit] - rate
                    # A difference this small is rounding, not a rate.
                    left[limit] = remaining if remaining > 1e-9 * rate else 0.0
        return found


class _Lane:
    """The flows from one server to another on one rail, and the one of them whose turn it is.
    ahead: what of its bits belongs to flows that it overtook."""

    def __init__(self) -> None:
        self.flow: Flow | None = None
        self._ahead = 0.0
        # A flow that is over stays here until it is the most urgent one.
        self._heap: list[tuple[int, int, Flow]] = []

    @property
    def urgency(self) -> tuple[int, int]:
        return self._heap[0][:2]

    def add(self, flow: Flow, now: float, window: float) -> None:
        heapq.heappush(self._heap, (flow.send_order, flow.tensor, flow))
        sends = self.flow
        if sends is None:
            self._turn_of(flow, 0.0)
        elif (flow.send_order, flow.tensor) < (sends.send_order, sends.tensor):
            left, sent_nothing = sends.left_at(now), now - sends.began <= _INSTANT_SECONDS
            almost = window + sends.rate * _INSTANT_SECONDS
            if not sent_nothing and window > 0.0 and left <= almost:
                return
            ahead = self._ahead if sent_nothing else window
            sends.bits_left, sends.since = max(left - ahead, 0.0), now
            flow.bits_left += ahead
            self._turn_of(flow, ahead)

    def next_one(self) -> None:
        """To be called when a flow is over."""
        while self._heap and self._heap[0][2].over:
            heapq.heappop(self._heap)
        if self.flow is None or self.flow.over:
            self._turn_of(self._heap[0][2] if self._heap else None, 0.0)

    def _turn_of(self, flow: Flow | None, ahead: float) -> None:
        self.flow, self._ahead = flow, ahead
        if flow is not None:
            flow.began = math.inf


def progressive_filling(
    ends: Sequence[tuple[Limit, ...]],
    capacity: Mapping[Limit, float],
    wanted: Mapping[Limit, float],
) -> list[float]:
    """Max-min fair rates of flows, each within its limits: all rates rise together, and each
    stops where one of its limits is full. wanted: the rate that the neighbour at a limit wants."""
    users: dict[Limit, dict[int, None]] = defaultdict(dict)
    for k, both in enumerate(ends):
        for limit in both:
            users[limit][k] = None
    taken = dict.fromkeys(users, 0.0)

    def level(limit: Limit) -> float:
        left, count = capacity[limit] - taken[limit], len(users[limit])
        together = left / (count + network.NEIGHBOUR_FLOWS)
        want = wanted.get(limit, 0.0)
        if want < network.NEIGHBOUR_FLOWS * together:  # the neighbour has all that it wants
            together = (left - want) / count
        return max(together, 0.0)

    rates = [0.0] * len(ends)
    full_at = {limit: level(limit) for limit in users}
    while full_at:
        narrowest = min(full_at, key=full_at.__getitem__)
        rate = full_at[narrowest]
        for k in list(users[narrowest]):
            rates[k] = rate
            for limit in ends[k]:
                taken[limit] += rate
                del users[limit][k]
                if users[limit]:
                    full_at[limit] = level(limit)
                else:
                    del full_at[limit]
    return rates


def equal_shares(amount: float, room: Mapping[Key, float]) -> dict[Key, float]:
    """The amount divided equally, but to no key more than its room."""
    shares: dict[Key, float] = {}
    left = max(amount, 0.0)
    for count, pair in zip(
        range(len(room), 0, -1), sorted(room, key=room.__getitem__), strict=True
    ):
        shares[pair] = max(0.0, min(room[pair], left / count))
        left -= shares[pair]
    return shares
