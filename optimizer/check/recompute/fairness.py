"""How the transfers under way share the NICs, by sharing. Rails never meet.

Each class knows the flows under way in groups that share nothing with each other, and gives all
rates of a group at once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from placewire.optimizer.check.recompute.network import (
    NEIGHBOUR_FLOWS,
    NicKey,
    PairKey,
    ceilings,
    neighbours,
    nic_rates,
    usable_rates,
)
from placewire.optimizer.placement import Placement

Key = TypeVar("Key")
Limit = tuple[str, str]  # "transmit" or "receive", server


@dataclass(eq=False)
class Flow:
    """One part of a message on its way over one rail. rate holds since `since`; version counts the
    changes of rate, so that an outdated end is recognised."""

    tensor: int
    channel: tuple[str, str, str]
    pair: PairKey
    send_order: int
    bits_left: float
    rate: float = 0.0
    since: float = 0.0
    version: int = 0
    over: bool = False

    def left_at(self, now: float) -> float:
        return max(0.0, self.bits_left - self.rate * (now - self.since))


class Shares(Protocol):
    # Whether the parts of one channel (source device, destination device, rail) wait for each
    # other, in the order of their being queued.
    first_come: bool

    def group(self, flow: Flow) -> Hashable: ...
    def join(self, flow: Flow) -> None: ...
    def leave(self, flow: Flow) -> None: ...
    def rates(self, group: Hashable) -> Mapping[Flow, float]:
        """Of every flow of the group that transmits; the others of the group wait."""
        ...


class MaxMin:
    """`unshaped`: a rail's flows and the neighbours of its NICs, max-min fairly."""

    first_come = True

    def __init__(self, placement: Placement) -> None:
        self._nics = nic_rates(placement)
        self._wanted = neighbours(placement)
        self._under_way: dict[str, dict[Flow, None]] = defaultdict(dict)

    def group(self, flow: Flow) -> str:
        return flow.pair[2]

    def join(self, flow: Flow) -> None:
        self._under_way[self.group(flow)][flow] = None

    def leave(self, flow: Flow) -> None:
        del self._under_way[self.group(flow)][flow]

    def rates(self, group: Hashable) -> dict[Flow, float]:
        flows = list(self._under_way[str(group)])
        ends = [_limits(flow) for flow in flows]
        capacity, wanted = {}, {}
        for limit in {limit for both in ends for limit in both}:
            capacity[limit] = self._nics.get((limit[1], str(group)), 0.0)
            wanted[limit] = self._wanted.get((limit[1], str(group)), 0.0)
        return dict(zip(flows, progressive_filling(ends, capacity, wanted), strict=True))


class MinimumsWithLending:
    """`guarantee`: each pair has its minimum; what a sender has left over is lent equally, to each
    pair at most up to its ceiling. Ceilings are such that no receiver limits anybody."""

    first_come = True

    def __init__(self, placement: Placement) -> None:
        self._usable = usable_rates(placement)
        self._least = {(s, t, r): x for s, t, r, x in placement.rates_bits_per_second}
        self._most = ceilings(placement)
        self._under_way: dict[NicKey, dict[Flow, None]] = defaultdict(dict)

    def group(self, flow: Flow) -> NicKey:
        return flow.pair[0], flow.pair[2]

    def join(self, flow: Flow) -> None:
        self._under_way[self.group(flow)][flow] = None

    def leave(self, flow: Flow) -> None:
        del self._under_way[self.group(flow)][flow]

    def rates(self, group: Hashable) -> dict[Flow, float]:
        assert isinstance(group, tuple)
        of_pair: dict[PairKey, list[Flow]] = defaultdict(list)
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


class MostUrgentFirst:
    """`job`: of each sender and rail only the most urgent part transmits; receivers divide fairly
    between senders. A sender that its receiver holds back gives what it has left to its next most
    urgent part for another receiver, in rounds."""

    first_come = False

    def __init__(self, placement: Placement) -> None:
        self._usable = usable_rates(placement)
        # rail -> sender -> receiver -> heap of (send order, flow); flows that are over are dropped
        # when they are seen.
        self._waiting: dict[str, dict[str, dict[str, list[tuple[int, int, Flow]]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )

    def group(self, flow: Flow) -> str:
        return flow.pair[2]

    def join(self, flow: Flow) -> None:
        source, target, rail = flow.pair
        heapq.heappush(self._waiting[rail][source][target], (flow.send_order, flow.tensor, flow))

    def leave(self, flow: Flow) -> None:
        flow.over = True

    def rates(self, group: Hashable) -> dict[Flow, float]:
        rail = str(group)
        turns: dict[str, list[Flow]] = {}
        for source, heaps in self._waiting[rail].items():
            if heaps and (urgent := _most_urgent(heaps)):
                turns[source] = sorted(urgent, key=lambda flow: (flow.send_order, flow.tensor))
        left: dict[Limit, float] = {}
        for source, flows in turns.items():
            left["transmit", source] = self._usable.get((source, rail), 0.0)
            for flow in flows:
                left["receive", flow.pair[1]] = self._usable.get((flow.pair[1], rail), 0.0)
        found: dict[Flow, float] = {}
        while active := [
            flows.pop(0) for s, flows in turns.items() if flows and left["transmit", s] > 0
        ]:
            ends = [_limits(flow) for flow in active]
            rates = progressive_filling(ends, left, {})
            for flow, both, rate in zip(active, ends, rates, strict=True):
                found[flow] = rate
                for limit in both:
                    remaining = left[limit] - rate
                    # Differences of equal sums: what is that small is rounding, not rate.
                    left[limit] = remaining if remaining > 1e-9 * rate else 0.0
        return found


def _most_urgent(heaps: dict[str, list[tuple[int, int, Flow]]]) -> list[Flow]:
    """One per receiver that is waited for; heaps that have run empty are dropped."""
    found = []
    for target, heap in list(heaps.items()):
        while heap and heap[0][2].over:
            heapq.heappop(heap)
        if heap:
            found.append(heap[0][2])
        else:
            del heaps[target]
    return found


def _limits(flow: Flow) -> tuple[Limit, Limit]:
    return ("transmit", flow.pair[0]), ("receive", flow.pair[1])


def progressive_filling(
    ends: Sequence[tuple[Limit, Limit]],
    capacity: Mapping[Limit, float],
    wanted: Mapping[Limit, float],
) -> list[float]:
    """Max-min fair rates of flows between these limits: all rise together, and each stops where one
    of its two limits is full. `wanted` is what the neighbour at a limit would take of it."""
    users: dict[Limit, dict[int, None]] = defaultdict(dict)
    for k, both in enumerate(ends):
        for limit in both:
            users[limit][k] = None
    taken = dict.fromkeys(users, 0.0)

    def level(limit: Limit) -> float:
        left, count = capacity[limit] - taken[limit], len(users[limit])
        together = left / (count + NEIGHBOUR_FLOWS)
        want = wanted.get(limit, 0.0)
        if want < NEIGHBOUR_FLOWS * together:  # the neighbour has all that it wants
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
    """The amount divided equally, to nobody more than its room."""
    shares: dict[Key, float] = {}
    left = max(amount, 0.0)
    for count, pair in zip(
        range(len(room), 0, -1), sorted(room, key=room.__getitem__), strict=True
    ):
        shares[pair] = max(0.0, min(room[pair], left / count))
        left -= shares[pair]
    return shares
