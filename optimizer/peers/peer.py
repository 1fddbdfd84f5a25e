"""A peer's step, simulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.timeline import Timeline


@dataclass(frozen=True)
class PeerStep:
    """words: how it was set, such as how many micro-batches. memory_bytes: of the device that needs
    most. sent_bytes: by the NIC that transmits most. limit: what its step waits for most."""

    name: str
    words: str
    step_seconds: float
    memory_bytes: int
    sent_bytes: float
    limit: str


def peer_step(
    name: str, words: str, problem: Problem, timeline: Timeline, *, beside: bool = False
) -> PeerStep:
    """beside: whether the second half of each server's devices only communicates, each for one of
    the first half."""
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
    memory, at = [], 0
    for server in cluster.servers:
        count = len(server.devices)
        peaks = timeline.peak_memory_bytes[at : at + count].astype(np.int64)
        own = count // 2 if beside else count
        memory += (peaks[:own] + (peaks[own:] if beside else 0)).tolist()
        at += count
    return PeerStep(
        name, words, timeline.step_seconds, int(max(memory, default=0)), float(sent),
        limit_words(timeline.step_seconds, work, network),
    )  # fmt: skip


def limit_words(step_seconds: float, work_seconds: float, network_seconds: float) -> str:
    """work_seconds: of the busiest device. network_seconds: of the busiest NIC, at full rate."""
    parts = {"compute": work_seconds, "network": network_seconds}
    most = max(parts, key=parts.__getitem__)
    part = parts[most] / max(step_seconds, 1e-300)
    return f"{most}, {part:.0%}" if part >= 0.5 else f"waiting, {1 - part:.0%}"
