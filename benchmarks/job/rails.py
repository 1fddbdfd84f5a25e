"""Item 2: bytes sent against the plan, NIC counters, several NICs, send order, sockets.

Real ranks run between namespaces whose NICs HTB limits in both directions, with nothing else on the
machine. This needs root.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.job.bare_ranks import (
    PAYLOAD,
    Sent,
    Told,
    cluster_of,
    flows_got,
    greedy_flows,
    job_of,
    replay,
)
from benchmarks.job.namespaces import Namespaces
from benchmarks.table import Table

MBIT = 1e6
BULK_BYTES = 6_000_000
URGENT_AFTER_SECONDS = 0.05
# So long that the urgent message decides when the step ends, however long the bulk takes.
URGENT_THEN_SECONDS = 1.0
NEIGHBOUR_SECONDS = 25


def tables(pictures: Path | None) -> Iterable[Table]:
    yield splits()
    yield speed()
    yield send_order()
    yield sockets()


def nics(rates_mbit: Mapping[str, float], servers: int = 2) -> dict[str, dict[str, float]]:
    return {
        rail: {f"s{k + 1}": rate * MBIT for k in range(servers)}
        for rail, rate in rates_mbit.items()
    }


def splits() -> Table:
    with Namespaces(nics({"a": 100, "b": 100})) as network:
        rows = [
            _split(network, sharing, {"a": a, "b": 1 - a})
            for sharing in ("strict", "job")
            for a in (1.0, 0.5, 0.7)
        ]
    return Table(
        "2. Bytes sent, by the plan, by the ranks and by the NICs' counters",
        ("sharing, split", "planned", "sent", "NIC a", "NIC b", "a off", "b off"),
        rows,
        (
            "MB over 3 steps. off: a NIC's counter, taken as payload of full frames, against the "
            "plan; connecting, headers of gloo and acknowledgements are in it.",
        ),
    )


def _split(network: Namespaces, sharing: str, shares: Mapping[str, float]) -> list[str]:
    steps = 3
    before = {rail: network.transmitted_bytes("s1", rail) for rail in network.rates}
    told = _replayed(network, [Sent("x", BULK_BYTES)], shares, sharing, steps)
    planned, sent = steps * BULK_BYTES, sum(told.traffic.values())
    assert sent == planned, f"{sent} bytes were sent, {planned} planned"
    payload = {
        rail: (network.transmitted_bytes("s1", rail) - before[rail]) * PAYLOAD for rail in before
    }
    off = [
        f"{payload[rail] / (planned * share) - 1:+.1%}" if share else "-"
        for rail, share in shares.items()
    ]
    name = f"{sharing}, {shares['a']:.0%} / {shares['b']:.0%}"
    return [name, *(f"{n / 1e6:.3f}" for n in (planned, sent, *payload.values())), *off]


def speed() -> Table:
    cases = (
        ("one NIC of 100", {"a": 100.0}, {"a": 1.0}),
        ("two NICs of 100, 50 / 50", {"a": 100.0, "b": 100.0}, {"a": 0.5, "b": 0.5}),
        ("70 + 30, split 50 / 50", {"a": 70.0, "b": 30.0}, {"a": 0.5, "b": 0.5}),
        ("70 + 30, split 70 / 30", {"a": 70.0, "b": 30.0}, {"a": 0.7, "b": 0.3}),
    )
    rows, got = [], {}
    for name, rates_mbit, shares in cases:
        with Namespaces(nics(rates_mbit)) as network:
            for sharing in ("strict", "job"):
                got[name, sharing] = carried_mbit(network, shares, sharing)
    for name, rates_mbit, _ in cases:
        both = [got[name, sharing] for sharing in ("strict", "job")]
        limit = sum(rates_mbit.values()) * PAYLOAD
        rows.append([name, f"{limit:.1f}", *(f"{one:.1f}" for one in both)])
    ratios = [
        f"{sharing}: two NICs carry {got[cases[1][0], sharing] / got[cases[0][0], sharing]:.2f} "
        f"times one; 70 / 30 carries {got[cases[3][0], sharing] / got[cases[2][0], sharing]:.2f} "
        "times 50 / 50."
        for sharing in ("strict", "job")
    ]
    return Table(
        "2. Mbit/s of payload that one message of 6 MB gets",
        ("NICs (Mbit/s)", "at most", "strict", "job"),
        rows,
        (*ratios, "Medians of 4 steps, from the step's begin to the last byte received."),
    )


def _replayed(
    network: Namespaces, sent: Sequence[Sent], shares: Mapping[str, float], sharing: str,
    steps: int, **spec: Any,
) -> Told:  # fmt: skip
    graph, placement = job_of(cluster_of(network.rates), sent, shares, sharing)  # type: ignore[arg-type]
    return replay(network, graph, placement, steps, **spec)


def carried_mbit(
    network: Namespaces, shares: Mapping[str, float], sharing: str, **spec: Any
) -> float:
    told = _replayed(network, [Sent("x", BULK_BYTES)], shares, sharing, 5, **spec)
    return BULK_BYTES * 8 / MBIT / statistics.median(told.step_seconds["s2"][1:])


def send_order() -> Table:
    rows = []
    with Namespaces(nics({"a": 100}, servers=3)) as network:
        for to, where in (("s2", "the same receiver"), ("s3", "another receiver")):
            for size in (1_000, 1_000_000):
                on, off = (delay_seconds(network, to, size, order) for order in (True, False))
                alone = size * 8 / (100 * MBIT * PAYLOAD)
                times = (f"{1e3 * x:.0f}" for x in (alone, off, on))
                rows.append([f"{size / 1e3:.0f} kB to {where}", *times])
    return Table(
        "2. Milliseconds until an urgent message behind a bulk of 6 MB has arrived",
        ("urgent message", "its bytes alone", "order off", "order on"),
        rows,
        ("100 Mbit/s, job sharing; the bulk began 50 ms before. Medians of 4 steps.",),
    )


def delay_seconds(network: Namespaces, to: str, size_bytes: int, urgent_first: bool) -> float:
    """Seconds from when the urgent message was sent to its arrival."""
    sent = [
        Sent("bulk", BULK_BYTES, "s2", urgency=1),
        Sent("urgent", size_bytes, to, URGENT_AFTER_SECONDS, URGENT_THEN_SECONDS),
    ]
    told = _replayed(network, sent, {"a": 1.0}, "job", 5, urgent_first=urgent_first)
    step = statistics.median(told.step_seconds[to][1:])
    return step - URGENT_AFTER_SECONDS - URGENT_THEN_SECONDS


def sockets() -> Table:
    rows = []
    for count in (1, 2, 4, 8):
        with Namespaces(nics({"a": 100}, servers=3)) as network:
            alone = carried_mbit(network, {"a": 1.0}, "unshaped", sockets_per_rail=count)
            beside, neighbour = _beside_a_neighbour(network, count)
        rows.append([str(count), f"{alone:.1f}", f"{beside:.1f}", f"{neighbour:.1f}"])
    return Table(
        "2. Connections of a pair on one NIC of 100 Mbit/s, unshaped: Mbit/s of payload",
        ("connections", "alone", "beside 8 greedy flows", "those flows"),
        rows,
        ("A 1 MB message a step beside the neighbour; no queue keeps them apart.",),
    )


def _beside_a_neighbour(network: Namespaces, count: int) -> tuple[float, float]:
    """Mbit/s of (the job, from s1 to s2; the neighbour, from s1 to s3)."""
    size, flows = 1_000_000, greedy_flows(network, 8, NEIGHBOUR_SECONDS)
    try:
        time.sleep(2)
        sent = [Sent("x", size)]
        told = _replayed(network, sent, {"a": 1.0}, "unshaped", 3, sockets_per_rail=count)
        own = size * 8 / statistics.median(told.step_seconds["s2"])
        return own / MBIT, flows_got(flows[-1]) / MBIT
    finally:
        for process in flows:
            process.kill()
            process.wait()
