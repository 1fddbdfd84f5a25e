"""A peer's step, simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.peers.beside_devices import COMMUNICATION
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.timeline import Timeline


@dataclass(frozen=True)
class PeerStep:
    """words: how it was set, such as how many micro-batches. memory_bytes: of the device that needs
    most. sent_bytes: by the NIC that transmits most. limit: what its step waits for most. fits:
    whether every device has the memory. simulated: the peer's own graph and cluster, and its
    step."""

    name: str
    words: str
    step_seconds: float
    memory_bytes: int
    sent_bytes: float
    limit: str
    fits: bool = True
    simulated: tuple[Problem, Timeline] | None = field(default=None, repr=False, compare=False)

    def summary(self) -> dict[str, Any]:
        """The figures and words."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.compare}


def peer_step(
    name: str, words: str, problem: Problem, timeline: Timeline, held: IntArray | None = None
) -> PeerStep:
    """held int64[D]: what collectives hold on each device; those that only communicate do not
    count."""
    cluster = problem.cluster
    rates = cluster.nic_rates
    sent = (timeline.transmit_busy_seconds * rates / 8.0).max(initial=0.0)
    network = max(
        timeline.transmit_busy_seconds.max(initial=0.0),
        timeline.receive_busy_seconds.max(initial=0.0),
    )
    seconds = problem.seconds
    work = max(
        (float(seconds[list(row), d].sum()) for d, row in enumerate(timeline.order) if row),
        default=0.0,
    )
    own = np.flatnonzero([device.type != COMMUNICATION for device in cluster.devices])
    memory = timeline.peak_memory_bytes[own].astype(np.int64)
    memory += 0 if held is None else held
    fits = bool((memory <= cluster.memory_bytes[own]).all())
    return PeerStep(
        name, words, timeline.step_seconds, int(memory.max(initial=0)), float(sent),
        limit_words(timeline.step_seconds, work, network), fits, (problem, timeline),
    )  # fmt: skip


def limit_words(step_seconds: float, work_seconds: float, network_seconds: float) -> str:
    """work_seconds: of the busiest device. network_seconds: of the busiest NIC, at full rate."""
    parts = {"compute": work_seconds, "network": network_seconds}
    most = max(parts, key=parts.__getitem__)
    part = parts[most] / max(step_seconds, 1e-300)
    return f"{most}, {part:.0%}" if part >= 0.5 else f"waiting, {1 - part:.0%}"
