"""Peers' simulated steps as placements, so that the check can compute them again by other code.

A peer's graph has its collectives as operators, of devices that only communicate: a placement like
any other, but of the peer's graph on the peer's cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.peers import ddp, fsdp, pipelines
from placewire.optimizer.peers.peer import PeerStep
from placewire.optimizer.placement import Message, Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.timeline import Timeline


@dataclass
class Simulated:
    """What every peer was found to be, with the problem and the timeline that say so."""

    steps: list[tuple[PeerStep, Problem, Timeline]] = field(default_factory=list)


def recorded(patch: pytest.MonkeyPatch) -> Simulated:
    """Records each step that peers simulate from now on."""
    found = Simulated()
    for module in (ddp, fsdp, pipelines):
        made = module.peer_step

        def noted(*given: Any, made: Any = made, **more: Any) -> PeerStep:
            step: PeerStep = made(*given, **more)
            every = [*given, *more.values()]
            problem = next(one for one in every if isinstance(one, Problem))
            timeline = next(one for one in every if isinstance(one, Timeline))
            found.steps.append((step, problem, timeline))
            return step

        patch.setattr(module, "peer_step", noted)
    return found


def placement_of(problem: Problem, timeline: Timeline, step_seconds: float) -> Placement:
    """What the timeline shows: devices, orders and messages; and the step that the peer claims."""
    graph, cluster = problem.graph, problem.cluster
    names, rails = cluster.device_names, cluster.rails
    messages = []
    for message in timeline.messages:
        producer = int(graph.tensor_producer[message.tensor])
        messages.append(
            Message(
                producer=graph.ids[producer],
                output=graph.output_tensors(producer).tolist().index(message.tensor),
                source=names[message.source], destination=names[message.destination],
                bytes=int(graph.tensor_bytes[message.tensor]), send_order=message.send_order,
                rails={r: x for r, x in zip(rails, message.rails, strict=False) if x > 0},
            )
        )  # fmt: skip
    order = {names[d]: tuple(graph.ids[i] for i in row) for d, row in enumerate(timeline.order)}
    bound, alone = lower_bound(problem), best_single(problem)
    return Placement(
        structure_hash=graph.structure_hash, profile_digest=graph.profile_digest, cluster=cluster,
        model=problem.model, sharing=problem.sharing, backend=problem.backend, floor=problem.floor,
        operators={name: device for device, row in order.items() for name in row}, order=order,
        rates_bits_per_second=(), messages=tuple(messages), step_seconds=step_seconds,
        bound_seconds=bound.seconds, bound_reason=bound.reason,
        gap=max(0.0, 1.0 - bound.seconds / step_seconds) if step_seconds > 0 else 0.0,
        single_device_seconds=None if alone is None else alone[1], engine="a peer",
        reduction="none", seed=0, wall_seconds={},
    )  # fmt: skip


def overlapping(problem: Problem, timeline: Timeline) -> list[str]:
    """Operators that begin before the one before them on their device has ended."""
    found = []
    for row in timeline.order:
        at = np.array(row, dtype=np.int64)
        early = timeline.start[at[1:]] < timeline.finish[at[:-1]] - 1e-12
        found += [problem.graph.ids[i] for i in at[1:][early].tolist()]
    return found
