"""A decision -> a Timeline: what runs and what is sent when, under the problem's named model.

thesis      a transfer takes p0 + bytes / b, b the sum of the pair's rates over the rails, and never
            waits for another; each device runs its operators in the graph's recorded topological
            sort (thesis, section 3.3); memory is the static sum of (3.2).
contended   a device runs its operators strictly in an order. One message per (tensor, destination
            device) is queued when its producer finishes. Each (source device, destination device,
            rail) is a first-come channel; a part on it takes p0 + part / rate. Device pairs in use
            of one server pair share its rate equally. A message of CUT_THRESHOLD_BYTES or more is
            cut over the rails in proportion to the pair's rates; a smaller one takes the fastest.
            Under `unshaped` sharing the parts under way share the NICs max-min fairly instead.

In both, two devices of one server are joined by one channel of the intra-server rate, and a tensor
of 0 bytes only orders.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.cluster import even_rates, widest_rates
from optimizer.graph import FloatArray, IntArray
from optimizer.problem import CUT_THRESHOLD_BYTES, Problem

Order = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TimelineMessage:
    """rails: share of the bytes per rail of the cluster, () inside one server. queued: the
    producer's finish; start: its first part's; rank: 0 is the most urgent of the step."""

    tensor: int
    source: int
    destination: int
    rank: int
    rails: tuple[float, ...]
    queued_seconds: float
    start_seconds: float
    finish_seconds: float


@dataclass(frozen=True)
class Timeline:
    """start, finish float64[n]; order: operators per device; peak_memory_bytes int64[D];
    transmit_busy_seconds, receive_busy_seconds float64[S, R]: how long each NIC would need at its
    full rate for what it carries. step_seconds is inf where a used pair has no rate."""

    start: FloatArray
    finish: FloatArray
    order: Order
    messages: tuple[TimelineMessage, ...]
    step_seconds: float
    peak_memory_bytes: IntArray
    transmit_busy_seconds: FloatArray
    receive_busy_seconds: FloatArray


def simulate(
    problem: Problem,
    device: IntArray,
    priority: FloatArray | None = None,
    order: Sequence[Sequence[int]] | None = None,
    rates: FloatArray | None = None,
) -> Timeline:
    """The timeline of operators on device int64[n], by explicit order, else by priority float64[n]
    (largest first among the ready), else by the recorded topological sort as priority.

    rates float64[S, S, R] are required under strict sharing and ignored under the others. Under
    `thesis` the order is the recorded sort, whatever is asked.

    Raises ValueError where an order is not a permutation of its device's operators or where orders
    wait for each other for ever.
    """
    device = np.ascontiguousarray(device, dtype=np.int64)
    _check_devices(problem, device)
    rates = rates_in_force(problem, rates)
    if problem.model == "thesis":
        assert rates is not None
        return _simulate_thesis(problem, device, rates)
    if order is None:
        if priority is None:
            priority = recorded_priority(problem)
        return _simulate_contended(problem, device, np.asarray(priority, dtype=np.float64), rates)
    flat = _flatten(device, order, len(problem.cluster.devices))
    return _simulate_ordered(problem, device, flat, rates)


def recorded_priority(problem: Problem) -> FloatArray:
    """float64[n]: earlier in the recorded topological sort is more urgent."""
    priority = np.empty(problem.graph.operator_count)
    priority[problem.graph.topological_order] = -np.arange(problem.graph.operator_count)
    return priority


def rates_in_force(problem: Problem, rates: FloatArray | None) -> FloatArray | None:
    """What the problem's sharing makes of a decision's rates; None: no per-pair rates at all."""
    if problem.sharing == "even":
        return _with_a_rail(even_rates(problem.cluster))
    if problem.sharing == "unshaped":
        # Transfers of the thesis' model never meet: each has its pair to itself.
        return _with_a_rail(widest_rates(problem.cluster)) if problem.model == "thesis" else None
    if rates is None:
        raise ValueError("strict sharing needs rates, float64[servers, servers, rails]")
    servers, rails = len(problem.cluster.servers), len(problem.cluster.rails)
    if rates.shape[:2] != (servers, servers) or rates.shape[2] not in (rails, max(rails, 1)):
        raise ValueError(f"rates have shape {rates.shape}, expected {(servers, servers, rails)}")
    return _with_a_rail(np.ascontiguousarray(rates, dtype=np.float64))


def _with_a_rail(rates: FloatArray) -> FloatArray:
    return rates if rates.shape[2] else np.zeros((*rates.shape[:2], 1))


def _check_devices(problem: Problem, device: IntArray) -> None:
    n, devices = problem.graph.operator_count, len(problem.cluster.devices)
    if device.shape != (n,):
        raise ValueError(f"device has shape {device.shape}, expected ({n},)")
    if n and (device.min() < 0 or device.max() >= devices):
        raise ValueError(f"device numbers must lie in 0..{devices - 1}")


def _flatten(device: IntArray, order: Sequence[Sequence[int]], devices: int) -> IntArray:
    if len(order) != devices:
        raise ValueError(f"order has {len(order)} devices, expected {devices}")
    for d, row in enumerate(order):
        if sorted(row) != np.flatnonzero(device == d).tolist():
            raise ValueError(f"order of device {d} is not a permutation of its operators")
    return np.array([i for row in order for i in row], dtype=np.int64)


def _grouped(device: IntArray, position: IntArray) -> IntArray:
    return np.lexsort((position, device)).astype(np.int64)


def _offsets(device: IntArray, devices: int) -> IntArray:
    offsets = np.zeros(devices + 1, dtype=np.int64)
    np.cumsum(np.bincount(device, minlength=devices), out=offsets[1:])
    return offsets


def _simulate_contended(
    problem: Problem, device: IntArray, priority: FloatArray, rates: FloatArray | None
) -> Timeline:
    """List scheduling decides the order; the timeline is that of the order, run strictly."""
    from optimizer.kernels.fluid import unshaped
    from optimizer.kernels.network import channel_rates, device_traffic
    from optimizer.kernels.schedule import by_priority
    from optimizer.kernels.tables import make_tables

    tables = make_tables(problem)
    n, m = problem.graph.operator_count, problem.graph.tensor_count
    start, finish, sent = np.empty(n), np.empty(n), np.empty(m)
    position = np.empty(n, dtype=np.int64)
    if rates is None:
        record = _Record(len(tables.consumers), tables.nic_rates.shape[1])
        empty = np.empty(0, dtype=np.int64)
        unshaped(
            tables, device, priority, empty, start, finish, sent, position, *record.arrays()
        )  # fmt: skip
    else:
        channels = channel_rates(tables, device_traffic(tables, device), rates)
        by_priority(tables, device, priority, channels, start, finish, sent, position)
    timeline = _simulate_ordered(problem, device, _grouped(device, position), rates)
    listed = finish.max(initial=0.0)
    assert not np.isfinite(listed) or abs(timeline.step_seconds - listed) <= 1e-9 * listed
    return timeline


class _Record:
    """Room for the messages of one run: M = number of edges at most."""

    def __init__(self, limit: int, rails: int) -> None:
        self.tensor = np.empty(limit, dtype=np.int64)
        self.device = np.empty(limit, dtype=np.int64)
        self.part_start = np.empty((limit, rails))
        self.part_finish = np.empty((limit, rails))

    def arrays(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        return self.tensor, self.device, self.part_start, self.part_finish


def _simulate_ordered(
    problem: Problem, device: IntArray, flat: IntArray, rates: FloatArray | None
) -> Timeline:
    from optimizer.kernels.fluid import unshaped
    from optimizer.kernels.memory import peak_memory
    from optimizer.kernels.network import channel_rates, device_traffic
    from optimizer.kernels.schedule import by_order
    from optimizer.kernels.tables import make_tables

    tables = make_tables(problem)
    n, m = problem.graph.operator_count, problem.graph.tensor_count
    devices = len(problem.cluster.devices)
    offsets = _offsets(device, devices)
    start, finish, sent = np.empty(n), np.empty(n), np.zeros(m)
    record = _Record(len(tables.consumers), tables.nic_rates.shape[1])
    position = np.empty(n, dtype=np.int64)
    position[flat] = np.arange(n) - np.repeat(offsets[:-1], np.diff(offsets))
    if rates is None:
        shares_of = widest_rates(problem.cluster)
        count = unshaped(
            tables, device, np.zeros(n), flat, start, finish, sent, np.empty(n, dtype=np.int64),
            *record.arrays(),
        )  # fmt: skip
    else:
        shares_of = rates
        channels = channel_rates(tables, device_traffic(tables, device), rates)
        count = by_order(tables, device, flat, offsets, channels, start, finish, *record.arrays())
    if count < 0:
        raise ValueError("the orders of the devices wait for each other for ever (deadlock)")
    began, arrived = _message_times(record, count)
    np.maximum.at(sent, record.tensor[:count], arrived)
    peak = peak_memory(tables, device, position, start, sent)
    run = _Run(
        start, finish, flat, record.tensor[:count], record.device[:count], began, arrived, peak
    )
    return _timeline(problem, device, shares_of, run)


def _message_times(record: _Record, count: int) -> tuple[FloatArray, FloatArray]:
    """First part's start and last part's finish; inf where no rail served the message."""
    starts, finishes = record.part_start[:count], record.part_finish[:count]
    began = np.where(starts < 0, np.inf, starts).min(axis=1, initial=np.inf)
    arrived = finishes.max(axis=1, initial=-1.0)
    return began, np.where(arrived < 0, np.inf, arrived)


def _simulate_thesis(problem: Problem, device: IntArray, rates: FloatArray) -> Timeline:
    from optimizer.kernels.memory import static_memory
    from optimizer.kernels.schedule import contention_free
    from optimizer.kernels.tables import make_tables

    tables = make_tables(problem)
    graph, cluster = problem.graph, problem.cluster
    n = graph.operator_count
    start, finish, sent = np.empty(n), np.empty(n), np.empty(graph.tensor_count)
    position = np.empty(n, dtype=np.int64)
    totals = rates.sum(axis=2)
    contention_free(tables, device, tables.topological, rates, start, finish, sent, position)
    tensor, destination = messages_needed(problem, device)
    source = device[graph.tensor_producer[tensor]]
    s, t = cluster.server_of_device[source], cluster.server_of_device[destination]
    rate = np.where(s == t, cluster.intra_server_bits_per_second, totals[s, t])
    began = finish[graph.tensor_producer[tensor]]
    with np.errstate(divide="ignore"):
        took = cluster.setup_latency_seconds + graph.tensor_bytes[tensor] * 8.0 / rate
    flat, peak = _grouped(device, position), static_memory(tables, device)
    run = _Run(start, finish, flat, tensor, destination, began, began + took, peak)
    return _timeline(problem, device, rates, run)


def messages_needed(problem: Problem, device: IntArray) -> tuple[IntArray, IntArray]:
    """(tensor, destination device) of every message, each once, sorted."""
    graph = problem.graph
    source, target, tensor = graph.edges
    crossing = (device[source] != device[target]) & (graph.tensor_bytes[tensor] > 0)
    pairs = np.unique(np.stack([tensor[crossing], device[target[crossing]]], axis=1), axis=0)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def _shares(
    problem: Problem, source: int, destination: int, size: int, rates: FloatArray
) -> tuple[float, ...]:
    """Share of the bytes per rail, by the same rule as the compiled channels."""
    s, t = problem.cluster.server_of_device[[source, destination]]
    if s == t:
        return ()
    row = rates[s, t]
    whole = size < CUT_THRESHOLD_BYTES and problem.model == "contended"
    if whole or row.sum() <= 0:
        fastest = int(row.argmax())
        return tuple(1.0 if r == fastest else 0.0 for r in range(len(row)))
    return tuple(float(x) for x in row / row.sum())


def _remaining_seconds(
    problem: Problem, device: IntArray, took: dict[tuple[int, int], float]
) -> FloatArray:
    """float64[n]: the longest path from each operator's start to the step's end, each message on
    its way taking as long as it did."""
    graph, seconds = problem.graph, problem.seconds
    remaining = np.zeros(graph.operator_count)
    for i in graph.topological_order[::-1].tolist():
        tail = 0.0
        for e in graph.output_tensors(i).tolist():
            for c in graph.tensor_consumers(e).tolist():
                tail = max(tail, took.get((e, int(device[c])), 0.0) + remaining[c])
        remaining[i] = seconds[i, device[i]] + tail
    return remaining


@dataclass(frozen=True)
class _Run:
    """What a simulation found, in arrays: operators by index, messages in one row each."""

    start: FloatArray
    finish: FloatArray
    flat: IntArray
    tensor: IntArray
    destination: IntArray
    began: FloatArray
    arrived: FloatArray
    peak: FloatArray


def _timeline(problem: Problem, device: IntArray, shares_of: FloatArray, run: _Run) -> Timeline:
    messages = _messages(problem, device, shares_of, run)
    transmit, receive = _busy_seconds(problem, messages)
    bounds = _offsets(device, len(problem.cluster.devices)).tolist()
    flat = run.flat.tolist()
    return Timeline(
        start=run.start,
        finish=run.finish,
        order=tuple(tuple(flat[a:b]) for a, b in itertools.pairwise(bounds)),
        messages=messages,
        step_seconds=float(run.finish.max(initial=0.0)),
        peak_memory_bytes=np.ceil(run.peak).astype(np.int64),
        transmit_busy_seconds=transmit,
        receive_busy_seconds=receive,
    )


def _messages(
    problem: Problem, device: IntArray, shares_of: FloatArray, run: _Run
) -> tuple[TimelineMessage, ...]:
    graph = problem.graph
    keys = list(zip(run.tensor.tolist(), run.destination.tolist(), strict=True))
    lasted = run.arrived - np.where(np.isfinite(run.began), run.began, 0.0)
    took = dict(zip(keys, lasted.tolist(), strict=True))
    remaining = _remaining_seconds(problem, device, took)
    urgency = [
        max(remaining[c] for c in graph.tensor_consumers(e).tolist() if device[c] == b)
        for e, b in keys
    ]
    by_urgency = sorted(range(len(keys)), key=lambda k: (-urgency[k], keys[k]))
    rank = {k: position for position, k in enumerate(by_urgency)}
    messages = []
    for k, (e, b) in enumerate(keys):
        producer = int(graph.tensor_producer[e])
        source, size = int(device[producer]), int(graph.tensor_bytes[e])
        message = TimelineMessage(
            tensor=e,
            source=source,
            destination=b,
            rank=rank[k],
            rails=_shares(problem, source, b, size, shares_of),
            queued_seconds=float(run.finish[producer]),
            start_seconds=float(run.began[k]),
            finish_seconds=float(run.arrived[k]),
        )
        messages.append(message)
    return tuple(messages)


def _busy_seconds(
    problem: Problem, messages: Sequence[TimelineMessage]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Transmit and receive float64[S, R]."""
    nics = problem.cluster.nic_rates
    bits = np.zeros((2, *nics.shape))
    for message in messages:
        size = float(problem.graph.tensor_bytes[message.tensor]) * 8.0
        ends = problem.cluster.server_of_device[[message.source, message.destination]]
        if not message.rails or not nics.shape[1]:
            continue
        bits[0, ends[0]] += size * np.array(message.rails)
        bits[1, ends[1]] += size * np.array(message.rails)
    busy = np.divide(bits, nics[None], out=np.zeros_like(bits), where=nics[None] > 0)
    return busy[0], busy[1]
