"""The best of the starts of Moirai's program, known before a solver begins.

Of given devices it is a whole schedule, which takes no solver: each device runs its operators in
the recorded sort, and each data flow travels when its tail has ended and both of its devices are
free for it, in the order of the flows' heads. So the program has an answer however little time
there is. A solver may find a better order for the same devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.formulations.answer import NO_ANSWER, Answer
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.own_step import Time, transfer_seconds
from placewire.optimizer.published.formulations.papers import Formulation


@dataclass(frozen=True)
class Schedule(Generic[Time]):
    """device int64[n]; the start of each operator, and of each edge's flow; the step."""

    device: IntArray
    start: list[Time]
    flows: list[Time]
    step: Time


def schedule(
    instance: Instance, device: IntArray, took: Sequence[Time], late: Sequence[Time]
) -> Schedule[Time]:
    """took: of each operator; late: of each edge's flow, 0 where nothing travels."""
    i, j, bits = instance.edges
    where, tails = device.tolist(), i.tolist()
    travels = ((device[i] != device[j]) & (bits > 0)).tolist()
    into: list[list[int]] = [[] for _ in where]
    for e, head in enumerate(j.tolist()):
        into[head].append(e)
    nothing: Time = took[0] * 0 if took else 0
    start, end, flows = [nothing] * len(where), [nothing] * len(where), [nothing] * len(tails)
    free, leaving, reaching = ([nothing] * instance.devices for _ in range(3))
    for k in instance.order.tolist():
        here = where[k]
        ready = free[here]
        for e in into[k]:
            at, there = end[tails[e]], where[tails[e]]
            if travels[e]:
                at = max(at, leaving[there], reaching[here])
                leaving[there] = reaching[here] = at + late[e]
            flows[e] = at
            ready = max(ready, at + late[e])
        start[k] = ready
        end[k] = free[here] = ready + took[k]
    return Schedule(device, start, flows, max(end, default=nothing))


def best_schedule(formulation: Formulation, starts: Sequence[IntArray]) -> Schedule[float] | None:
    """The shortest, in seconds, of the starts that the memories admit, each devices int64[n]; None
    where there is none, or each needs a channel that the network does not have."""
    instance, network = formulation.instance, formulation.network
    found: list[Schedule[float]] = []
    for device in starts:
        if instance.admits(device):
            took = instance.seconds[np.arange(instance.operators), device].tolist()
            late = transfer_seconds(instance, network, device, None).tolist()
            found.append(schedule(instance, device, took, late))
    whole = [one for one in found if math.isfinite(one.step)]
    return min(whole, key=lambda one: one.step, default=None)


def known_answer(formulation: Formulation, known: Schedule[float] | None) -> Answer:
    """The schedule as an answer of which no bound is known, with the values of x and of the
    operators' starts; NO_ANSWER without one."""
    if known is None:
        return NO_ANSWER
    assert formulation.start is not None
    values = np.zeros(formulation.draft.columns.count)
    values[formulation.x[np.arange(len(known.device)), known.device]] = 1.0
    values[formulation.start] = np.array(known.start) / formulation.horizon_seconds
    return Answer(
        values, known.step / formulation.horizon_seconds, bound=0.0, infeasible=False,
        words="time limit", rounds=0,
    )  # fmt: skip
