"""The Timeline: what a simulation found, for everything that draws, reports or compares it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.simulation.first_come import device_offsets
from placewire.optimizer.kernels.simulation.message_urgency import number_messages
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.problem import Problem

Order = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TimelineMessage:
    """A message of a step. send_order: 0 is the most urgent of the step. rails: the share of its
    bytes on each rail of the cluster, () past the NICs. It is queued when its producer finishes,
    and starts with its first part."""

    tensor: int
    source: int
    destination: int
    send_order: int
    rails: tuple[float, ...]
    queued_seconds: float
    start_seconds: float
    finish_seconds: float


@dataclass(frozen=True)
class Timeline:
    """A simulated step.

    start, finish float64[n]; order: the operators of each device, as they ran. part_start_seconds,
    part_finish_seconds float64[M, R]: the times of each message on each rail that has a share of
    it, and in column 0 those of a message past the NICs; other entries have no meaning.
    peak_memory_bytes int64[D]. transmit_busy_seconds, receive_busy_seconds float64[S, R]: how long
    each NIC would need at its full rate for what it carries. background_bits float64[S, R]: what
    others transmitted and received on each NIC during the step. step_seconds is inf where a used
    pair has no rate.
    """

    start: FloatArray
    finish: FloatArray
    order: Order
    messages: tuple[TimelineMessage, ...]
    part_start_seconds: FloatArray
    part_finish_seconds: FloatArray
    step_seconds: float
    peak_memory_bytes: IntArray
    transmit_busy_seconds: FloatArray
    receive_busy_seconds: FloatArray
    background_bits: FloatArray


@dataclass(frozen=True)
class Run:
    """What the compiled loops found.

    position int64[n]: each operator's place among those of its device. tensor, destination
    int64[M]: one entry per message. part_start, part_finish float64[M, R]: the times of each
    message's part on each rail, -1 where it has none; column 0 stands for a path past the NICs.
    peak float64[D] bytes. background_bits: None where they must be computed from the parts.
    """

    start: FloatArray
    finish: FloatArray
    position: IntArray
    tensor: IntArray
    destination: IntArray
    part_start: FloatArray
    part_finish: FloatArray
    peak: FloatArray
    background_bits: FloatArray | None


def messages_needed(problem: Problem, device: IntArray) -> tuple[IntArray, IntArray]:
    """The (tensor, destination device) of each message, sorted."""
    graph = problem.graph
    source, target, tensor = graph.edges
    crossing = (device[source] != device[target]) & (graph.tensor_bytes[tensor] > 0)
    pairs = np.unique(np.stack([tensor[crossing], device[target[crossing]]], axis=1), axis=0)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def arrival_seconds(part_finish: FloatArray) -> FloatArray:
    """float64[M]: when the last part of each message finished; inf where no rail served it."""
    arrived = part_finish.max(axis=1, initial=-1.0)
    return np.where(arrived < 0, np.inf, arrived)


def make_timeline(problem: Problem, device: IntArray, rates: FloatArray, run: Run) -> Timeline:
    """Makes the Timeline of a run; rates float64[S, S, R] are those in force, which cut
    messages."""
    nics = problem.cluster.nic_rates
    source = device[problem.graph.tensor_producer[run.tensor]]
    shares = _shares(problem, source, run.destination, run.tensor, rates)
    transmit, receive = _bits_carried(problem, source, run, shares)
    full = np.where(nics > 0, nics, np.inf)
    background = run.background_bits
    if background is None:
        background = _background_bits(problem, source, run, shares)
    bounds = device_offsets(device, len(problem.cluster.devices)).tolist()
    order = np.lexsort((run.position, device)).tolist()
    return Timeline(
        start=run.start, finish=run.finish,
        order=tuple(tuple(order[a:b]) for a, b in itertools.pairwise(bounds)),
        messages=_messages(problem, device, source, run, shares),
        part_start_seconds=run.part_start, part_finish_seconds=run.part_finish,
        step_seconds=float(run.finish.max(initial=0.0)),
        peak_memory_bytes=np.ceil(run.peak).astype(np.int64),
        transmit_busy_seconds=transmit / full, receive_busy_seconds=receive / full,
        background_bits=background[:, : nics.shape[1]],
    )  # fmt: skip


def _shares(
    problem: Problem, source: IntArray, destination: IntArray, tensor: IntArray, rates: FloatArray
) -> FloatArray:
    """float64[M, R]: the share of each message's bytes on each rail, by the same rule as in
    compiled loops; all 0 past the NICs."""
    server = problem.cluster.server_of_device
    row = rates[server[source], server[destination]]
    total = row.sum(axis=1, keepdims=True)
    weight = (row > 0).astype(np.float64) if problem.cuts_equally else row
    shares = weight / np.where(total > 0, weight.sum(axis=1, keepdims=True), 1.0)
    whole = total[:, 0] <= 0
    if problem.model == "contended":
        whole |= problem.graph.tensor_bytes[tensor] < CUT_THRESHOLD_BYTES
    shares[whole] = np.eye(row.shape[1])[row[whole].argmax(axis=1)]
    shares[problem.paths.rate[source, destination] > 0] = 0.0
    return shares


def _messages(
    problem: Problem, device: IntArray, source: IntArray, run: Run, shares: FloatArray
) -> tuple[TimelineMessage, ...]:
    began = np.where(run.part_start < 0, np.inf, run.part_start).min(axis=1, initial=np.inf)
    arrived = arrival_seconds(run.part_finish)
    queued = run.finish[problem.graph.tensor_producer[run.tensor]]
    rails = [tuple(row) if any(row) else () for row in shares.tolist()]
    columns = (
        run.tensor, source, run.destination, _send_order(problem, device, run), queued, began,
        arrived,
    )  # fmt: skip
    return tuple(
        TimelineMessage(e, a, b, sent, row, ready, start, finish)
        for row, e, a, b, sent, ready, start, finish in zip(
            rails, *(column.tolist() for column in columns), strict=True
        )
    )


def _send_order(problem: Problem, device: IntArray, run: Run) -> IntArray:
    """int64[M]: each message's place by urgency, ties by tensor and then by destination device."""
    tables = tables_of(problem)
    edges = len(tables.consumers)
    urgency = np.empty(edges)
    number_messages(tables, device, np.empty(edges, dtype=np.int64), urgency)
    tensor, destination = messages_needed(problem, device)
    place_in_order = np.empty(len(tensor), dtype=np.int64)
    by_urgency = np.lexsort((np.arange(len(tensor)), -urgency[: len(tensor)]))
    place_in_order[by_urgency] = np.arange(len(tensor))
    devices = len(problem.cluster.devices)
    place = np.searchsorted(tensor * devices + destination, run.tensor * devices + run.destination)
    return place_in_order[place]


def _bits_carried(
    problem: Problem, source: IntArray, run: Run, shares: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """float64[S, R] each: the bits that the job transmitted and received on each NIC."""
    nics = problem.cluster.nic_rates
    server = problem.cluster.server_of_device
    bits = problem.graph.tensor_bytes[run.tensor, None] * 8.0 * shares[:, : nics.shape[1]]
    transmit, receive = np.zeros_like(nics), np.zeros_like(nics)
    np.add.at(transmit, server[source], bits)
    np.add.at(receive, server[run.destination], bits)
    return transmit, receive


def _background_bits(
    problem: Problem, source: IntArray, run: Run, shares: FloatArray
) -> FloatArray:
    """float64[S, R]: what others carried on each NIC, who at each moment have what they want as far
    as the job leaves it; 0 for a step without end.

    The rate of a part is taken to be constant from the end of its set-up to its finish.
    """
    cluster = problem.cluster
    step = float(run.finish.max(initial=0.0))
    found = np.zeros_like(cluster.nic_rates)
    if not np.isfinite(step):
        return found
    for s, r in np.argwhere(cluster.background > 0).tolist():
        for end in (source, run.destination):
            mine = (cluster.server_of_device[end] == s) & (shares[:, r] > 0)
            begin = run.part_start[mine, r] + cluster.setup_latency_seconds
            until = run.part_finish[mine, r]
            bits = problem.graph.tensor_bytes[run.tensor[mine]] * 8.0 * shares[mine, r]
            rate = np.divide(bits, until - begin, out=np.zeros_like(bits), where=until > begin)
            at = np.concatenate([begin, until, [0.0, step]])
            change = np.concatenate([rate, -rate, [0.0, 0.0]])
            by_time = np.argsort(at, kind="stable")
            used = np.cumsum(change[by_time])[:-1]
            left = np.maximum(cluster.nic_rates[s, r] - used, 0.0)
            lasted = np.diff(np.clip(at[by_time], 0.0, step))
            found[s, r] += float((np.minimum(left, cluster.background[s, r]) * lasted).sum())
    return found
