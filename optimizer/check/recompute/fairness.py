"""Rates of the flows under way, with one class for each sharing that lets flows share the network.

Flows of different rails never share anything.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from placewire.optimizer.check.recompute import network
from placewire.optimizer.placement import Placement

Key = TypeVar("Key")
# Events that are less than this apart happen at once; the difference is rounding.
_INSTANT_SECONDS = 1e-9
# A time plus this part of it is a later time, for certain.
_CLOCK_TICK = 1e-15
# ("transmit" or "receive", server), or a pod's uplink in one direction.
Limit = tuple[str, str]


@dataclass(eq=False)
class Flow:
    """The part of a message that travels over one rail. since: when it was queued, and later when
    it got its rate, in bits per second, for at most granted_bits. counted_on_bits: what was granted
    when its end was computed; version: counts the changes of rate, so that an outdated end is
    recognised."""

    tensor: int
    channel: tuple[str, str, str]
    pair: network.PairKey
    send_order: int
    bits_left: float
    rate: float = 0.0
    since: float = 0.0
    granted_bits: float = math.inf
    counted_on_bits: float = math.inf
    version: int = 0
    over: bool = False

    def left_at(self, now: float) -> float:
        return max(0.0, self.bits_left - self.rate * (now - self.since))

    def has_sent_grant(self, now: float) -> bool:
        return self.granted_bits <= self.rate * (now - self.since + _INSTANT_SECONDS)


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
    def rates(self, group: Hashable, now: float) -> Mapping[Flow, float]:
        """Bits per second of each flow of the group that transmits; its other flows wait. Sets the
        bits that are granted to a flow, where these are not all of it."""


class MaxMin(Shares):
    """`unshaped`: a rail's flows and the neighbours of its NICs share the NICs max-min fairly."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._nics = network.nic_rates(placement)
        self._wanted = network.neighbours(placement)

    def rates(self, group: Hashable, now: float) -> dict[Flow, float]:
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

    def rates(self, group: Hashable, now: float) -> dict[Flow, float]:
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
    """`job`: on each rail a sender transmits its most urgent flow, and a receiver divides its NIC
    fairly between senders. A sender that its receiver limits gives the rest of its rate to its
    next most urgent flow for another receiver, in rounds. What was handed over of a flow, at most a
    window, still leaves when a more urgent one takes its turn: before that one where both have the
    same receiver, and else beside it, with a fair share. No flow to the same receiver overtakes one
    of which no more than that is left; that one then transmits on behalf of the most urgent one.
    When no more than the low water is left of a sender's most urgent flow, and its next one is for
    another receiver, half a window of that one is handed over.
    """

    first_come = False

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._windows = network.windows(placement)
        self._low_water = network.low_water(placement)
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

    def rates(self, group: Hashable, now: float) -> dict[Flow, float]:
        rail = str(group)
        senders = self._lanes[rail].values()
        busy = [lane for lanes in senders for lane in lanes.values() if lane.flow is not None]
        busy.sort(key=lambda lane: lane.urgency)
        first = {lane.sends.pair[0]: lane for lane in reversed(busy)}
        for lane in busy:
            lane.set_turn(first[lane.sends.pair[0]] is lane, now)
        others = [lane for lane in reversed(busy) if first[lane.sends.pair[0]] is not lane]
        for sender, second in {lane.sends.pair[0]: lane for lane in others}.items():
            instant = _INSTANT_SECONDS + _CLOCK_TICK * now
            at_once = self._usable.get((sender, rail), 0.0) * instant
            low_water = self._low_water.get((sender, rail), 0.0)
            if not first[sender].has_next_before(second) and first[sender].is_soon_over(
                low_water, at_once, now
            ):
                second.hand_over_half(at_once, now)
        left = self._capacity(rail, [lane.sends for lane in busy])
        found: dict[Flow, float] = {}
        active = [*first.values(), *(lane for lane in busy if lane.drains)]
        while active:
            ends = [self._limits(lane.sends) for lane in active]
            rates = progressive_filling(ends, left, {})
            for lane, both, rate in zip(active, ends, rates, strict=True):
                found[lane.sends] = rate
                for limit in both:
                    remaining = left[limit] - rate
                    # A difference this small is rounding, not a rate.
                    left[limit] = remaining if remaining > 1e-9 * rate else 0.0
            following: dict[str, _Lane] = {}
            for lane in busy:
                source = lane.sends.pair[0]
                if lane.sends not in found and left["transmit", source] > 0:
                    following.setdefault(source, lane)
            active = list(following.values())
        return found

    def _capacity(self, rail: str, flows: Iterable[Flow]) -> dict[Limit, float]:
        most: dict[Limit, float] = {}
        for flow in flows:
            source, target, _ = flow.pair
            for end in (("transmit", source), ("receive", target)):
                most[end] = self._usable.get((end[1], rail), 0.0)
            for crossing in self._passed(flow):
                most[crossing] = self._uplinks.most(crossing, rail)
        return most


class _Lane:
    """The flows from one server to another on one rail, and the one of them that it transmits.

    It has its turn while that is the most urgent one of its sender; a window of it is then handed
    over, but at the time _turn, when its turn or its flow began, only _had. Without a turn, all
    that the flow has left but _outside is handed over. Half a window that is handed over because
    its sender has little else is taken back where another lane becomes the next one at the same
    time, _given."""

    def __init__(self) -> None:
        self.flow: Flow | None = None
        self._has_turn = False
        self._turn = self._had = self._outside = self._window = 0.0
        self._given = -math.inf
        # A flow that is over stays here until it is the most urgent one.
        self._heap: list[tuple[int, int, Flow]] = []

    @property
    def urgency(self) -> tuple[int, int]:
        return self._heap[0][:2]

    @property
    def sends(self) -> Flow:
        assert self.flow is not None, "the lane is idle"
        return self.flow

    @property
    def drains(self) -> bool:
        """Whether it transmits what was handed over though it has no turn."""
        return not self._has_turn and self.sends.granted_bits < math.inf

    def handed_over(self, now: float) -> float:
        left = self.sends.left_at(now)
        handed = left - self._outside
        if self._has_turn:
            handed = self._had if now - self._turn <= _INSTANT_SECONDS else self._window
        elif now - self._given <= _INSTANT_SECONDS:
            handed = 0.0
        rounding = 1e-9 * left
        return left if handed >= left - rounding else max(handed, 0.0)

    def set_turn(self, has_turn: bool, now: float) -> None:
        """To be called before rates are given. Grants the flow what is handed over where it has no
        turn, and all of it where nothing is."""
        handed, left = self.handed_over(now), self.sends.left_at(now)
        if has_turn and not self._has_turn:
            self._turn, self._had = now, handed
        elif not has_turn and not self._has_turn and self.sends.has_sent_grant(now):
            handed = 0.0
        self._has_turn, self._outside = has_turn, left - handed
        self.sends.granted_bits = math.inf if has_turn or not handed else handed

    def has_next_before(self, other: _Lane) -> bool:
        """Whether a flow waits behind its own that is more urgent than the other lane's."""
        return any(
            (send_order, tensor) < other.urgency and not flow.over and flow is not self.flow
            for send_order, tensor, flow in self._heap
        )

    def is_soon_over(self, low_water: float, at_once: float, now: float) -> bool:
        """To be called where it has its turn, and another lane waits. Where more than the low water
        is left, only that is granted, so that rates are computed again then. at_once: so many bits
        more are rounding."""
        if not low_water:
            return False
        above = self.sends.left_at(now) - low_water
        if above > at_once:
            self.sends.granted_bits = above
        return above <= at_once

    def hand_over_half(self, at_once: float, now: float) -> None:
        """Unless something is handed over already."""
        left, half = self.sends.left_at(now), self._window / 2
        if not self.drains and half > at_once:
            handed = half if half < left * (1 - 1e-9) else left
            self._outside, self.sends.granted_bits, self._given = left - handed, handed, now

    def add(self, flow: Flow, now: float, window: float) -> None:
        heapq.heappush(self._heap, (flow.send_order, flow.tensor, flow))
        self._window, sends = window, self.flow
        if sends is None:
            self._begin(flow, 0.0)
        elif self._heap[0][2] is flow:
            left, handed = sends.left_at(now), self.handed_over(now)
            if handed > 0.0 and left <= handed + sends.rate * _INSTANT_SECONDS:
                # What is left beside it is rounding, which must not wait for another turn.
                sends.bits_left -= max(left - handed, 0.0)
                self._outside = 0.0
                return
            sends.bits_left, sends.since = max(left - handed, 0.0), now
            sends.version += 1
            # The new flow has as much handed over as the one that it overtakes had.
            self._turn, self._had = now, handed
            self._begin(flow, handed)

    def next_one(self) -> None:
        """To be called when a flow is over."""
        while self._heap and self._heap[0][2].over:
            heapq.heappop(self._heap)
        if self.flow is None or self.flow.over:
            self._has_turn = False
            self._begin(self._heap[0][2] if self._heap else None, 0.0)

    def _begin(self, flow: Flow | None, ahead_bits: float) -> None:
        """ahead_bits: what is handed over of the flow that this one overtakes."""
        self.flow = flow
        if flow is not None:
            self._outside = flow.bits_left
            flow.bits_left += ahead_bits


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
