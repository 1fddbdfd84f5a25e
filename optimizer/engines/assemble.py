"""Converts a solution to a Placement: names instead of numbers, with messages, bound and gap."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from placewire.optimizer.bounds import Bound
from placewire.optimizer.device_names import server_of
from placewire.optimizer.engines.bundling import Bundled
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Message, Placement, Sent
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.simulation.timeline import Timeline


def assemble(
    problem: Problem,
    made: Bundled,
    bound: Bound,
    *,
    single_device_seconds: float | None,
    engine: str,
    reduction: str,
    seed: int,
    wall_seconds: Mapping[str, float],
) -> Placement:
    """problem: with the graph as it was given. Raises InfeasibleError where a message never
    arrives."""
    graph, cluster, names = problem.graph, problem.cluster, problem.cluster.device_names
    solution, step = made.solution, made.timeline.step_seconds
    if not math.isfinite(step):
        raise InfeasibleError(_what_never_arrives(problem, made.timeline, engine))
    return Placement(
        structure_hash=graph.structure_hash,
        profile_digest=graph.profile_digest,
        cluster=cluster,
        model=problem.model,
        sharing=problem.sharing,
        backend=problem.backend,
        floor=problem.floor,
        operators=dict(zip(graph.ids, (names[d] for d in solution.device), strict=True)),
        order={
            names[d]: tuple(graph.ids[i] for i in row if i < graph.operator_count)
            for d, row in enumerate(made.step.order)
        },
        rates_bits_per_second=_rate_rows(problem, solution),
        messages=_messages(graph, made),
        step_seconds=step,
        bound_seconds=bound.seconds,
        bound_reason=bound.reason,
        gap=max(0.0, 1.0 - bound.seconds / step) if step > 0 else 0.0,
        single_device_seconds=single_device_seconds,
        engine=engine,
        reduction=reduction,
        seed=seed,
        wall_seconds=dict(wall_seconds),
    )


def _what_never_arrives(problem: Problem, timeline: Timeline, engine: str) -> str:
    names = problem.cluster.device_names
    lost = next(m for m in timeline.messages if not math.isfinite(m.finish_seconds))
    source, target = server_of(names[lost.source]), server_of(names[lost.destination])
    return (
        f"{engine} found only placements in which {source} sends to {target}, and they have no "
        "rate on a common rail; give both a NIC on one rail, or fewer servers enough memory"
    )


def _rate_rows(problem: Problem, solution: Solution) -> tuple[tuple[str, str, str, float], ...]:
    """The rates that the sharing sets for pairs; none under the model `msr`, which has no NICs."""
    cluster = problem.cluster
    decided = problem.decided(solution.rates)
    if decided is not None:
        decided = decided[:, :, : len(cluster.rails)]
    rates = problem.policy.recorded_rates(problem.usable, decided)
    if rates is None or problem.model == "msr":
        return ()
    names = [server.name for server in cluster.servers]
    return tuple(
        (names[s], names[t], cluster.rails[r], float(rates[s, t, r]))
        for s, t, r in np.argwhere(rates > 0).tolist()
    )


def _messages(graph: OperatorGraph, made: Bundled) -> tuple[Message, ...]:
    """graph: as given, without the bundles."""
    cluster, operators = made.problem.cluster, graph.operator_count
    names = cluster.device_names
    found = []
    for message in sorted(made.timeline.messages, key=lambda m: m.send_order):
        producer = int(made.step.graph.tensor_producer[message.tensor])
        tensors: tuple[int, ...] = (message.tensor,)
        if producer >= operators:
            tensors = made.bundles[producer - operators].tensors
        *others, last = (_sent(graph, e) for e in tensors)
        found.append(
            Message(
                producer=last.producer,
                output=last.output,
                bundled=tuple(others),
                source=names[message.source],
                destination=names[message.destination],
                bytes=int(made.step.graph.tensor_bytes[message.tensor]),
                send_order=message.send_order,
                rails={r: x for r, x in zip(cluster.rails, message.rails, strict=False) if x > 0},
            )
        )
    return tuple(found)


def _sent(graph: OperatorGraph, tensor: int) -> Sent:
    producer = int(graph.tensor_producer[tensor])
    output = graph.output_tensors(producer).tolist().index(tensor)
    return Sent(graph.ids[producer], output, int(graph.tensor_bytes[tensor]))
