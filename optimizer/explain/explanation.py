"""Computes why a placement's step takes as long as it does, and what would shorten it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from placewire.optimizer.device_names import server_of
from placewire.optimizer.explain import what_if
from placewire.optimizer.explain.critical_path import Segment, critical_path
from placewire.optimizer.explain.parallelism import Stage, stages
from placewire.optimizer.explain.summary import problem_of, step_of, traffic_by_pair
from placewire.optimizer.explain.uplinks import UplinkUse, uplink_waits, uplinks_used
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from placewire.optimizer.simulation.simulate import simulate
from placewire.optimizer.simulation.timeline import TimelineMessage


@dataclass(frozen=True)
class Stretch:
    """A part of the critical path: `operators` operators, `first` to `last`, that run on `device`
    one after the other, or a message of `bytes` from `source` that waits or is under way."""

    kind: str
    start_seconds: float
    seconds: float
    source: str
    device: str
    first: str
    last: str
    operators: int
    bytes: int


@dataclass(frozen=True)
class PairTraffic:
    """The messages from one server to another. rate_bits_per_second: the decided rate, summed over
    rails, None where rates are not decided; part_of_rate, part_of_bytes: of the source server's
    totals; critical_seconds: how long the step waits for these messages."""

    source: str
    destination: str
    messages: int
    bytes: int
    rate_bits_per_second: float | None
    part_of_rate: float | None
    part_of_bytes: float
    critical_seconds: float


@dataclass(frozen=True)
class Explanation:
    """stages: how layers are spread, in the order of the step. changes: step times of the same
    placement after each change, the shortest first. limit: with a network that takes no time, None
    where nothing is sent. more: a bound with one device more."""

    step_seconds: float
    bound_seconds: float
    bound_reason: str
    stages: tuple[Stage, ...]
    path: tuple[Stretch, ...]
    pairs: tuple[PairTraffic, ...]
    uplinks: tuple[UplinkUse, ...]
    changes: tuple[what_if.Change, ...]
    limit: what_if.Change | None
    more: what_if.Change

    def seconds_of(self, kind: str) -> float:
        return sum(stretch.seconds for stretch in self.path if stretch.kind == kind)


def explain(graph: OperatorGraph, placement: Placement) -> Explanation:
    """The placement must pass `check`."""
    step = step_of(graph, placement)
    problem = problem_of(step.graph, placement)
    decision = what_if.PlacementArrays(step.device, step.order, placement.rates)
    timeline = simulate(problem, step.device, order=step.order, rates=placement.rates)
    path = critical_path(problem, step.device, timeline)
    found = what_if.changes(problem, decision, what_if.busiest_devices(problem, decision))
    return Explanation(
        step_seconds=timeline.step_seconds,
        bound_seconds=placement.bound_seconds,
        bound_reason=placement.bound_reason,
        stages=stages(graph, placement),
        path=_stretches(step.graph, placement, path, timeline.messages),
        pairs=_pairs(placement, path, problem.decides_rates),
        uplinks=uplinks_used(placement, uplink_waits(placement.cluster, path)),
        changes=tuple(sorted(found, key=lambda change: change.step_seconds)),
        limit=what_if.without_network(problem, decision) if timeline.messages else None,
        more=what_if.bound_with_another_device(problem_of(graph, placement)),
    )


def _stretches(
    graph: OperatorGraph,
    placement: Placement,
    path: Sequence[Segment],
    messages: Sequence[TimelineMessage],
) -> tuple[Stretch, ...]:
    """Operators in a row on one device are one stretch."""
    names = placement.cluster.device_names
    sizes = {
        (graph.ids[graph.tensor_producer[m.tensor]], names[m.source], names[m.destination]): int(
            graph.tensor_bytes[m.tensor]
        )
        for m in messages
    }
    runs: list[list[Segment]] = []
    for segment in path:
        joins = runs and segment.kind == "compute" == runs[-1][-1].kind
        if joins and runs[-1][-1].device == segment.device:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    found = []
    for run in runs:
        source, target = names[run[0].source], names[run[0].device]
        first, last = graph.ids[run[0].operator], graph.ids[run[-1].operator]
        sent = run[0].kind != "compute"
        found.append(
            Stretch(
                kind=run[0].kind,
                start_seconds=run[0].start_seconds,
                seconds=run[-1].finish_seconds - run[0].start_seconds,
                source=source,
                device=target,
                first=first,
                last=last,
                operators=0 if sent else len(run),
                bytes=sizes[first, source, target] if sent else 0,
            )
        )
    return tuple(found)


def _pairs(placement: Placement, path: Sequence[Segment], decided: bool) -> tuple[PairTraffic, ...]:
    """The pairs of servers with the most bytes first."""
    names = placement.cluster.device_names
    rate: dict[tuple[str, str], float] = defaultdict(float)
    critical: dict[tuple[str, str], float] = defaultdict(float)
    for source, destination, _, part in placement.rates_bits_per_second:
        rate[source, destination] += part
    for segment in path:
        if segment.kind != "compute":
            pair = server_of(names[segment.source]), server_of(names[segment.device])
            critical[pair] += segment.seconds
    traffic = traffic_by_pair(placement)
    sent: dict[str, int] = defaultdict(int)
    given: dict[str, float] = defaultdict(float)
    for (source, _), (_, size) in traffic.items():
        sent[source] += size
    for (source, _), part in rate.items():
        given[source] += part
    return tuple(
        PairTraffic(
            source=pair[0],
            destination=pair[1],
            messages=count,
            bytes=size,
            rate_bits_per_second=rate.get(pair) if decided else None,
            part_of_rate=rate[pair] / given[pair[0]] if decided and rate.get(pair) else None,
            part_of_bytes=size / sent[pair[0]],
            critical_seconds=critical[pair],
        )
        for pair, (count, size) in traffic.items()
    )
