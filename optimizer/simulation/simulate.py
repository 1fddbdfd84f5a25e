"""Simulates a placement: what runs and what is sent when, as a Timeline, under the problem's model.

thesis      a transfer takes p0 + bytes / b, where b is the sum of the pair's rates over the rails,
            and never waits for another; each device runs its operators in the graph's recorded
            topological sort (thesis, section 3.3); memory is the static sum of (3.2).
contended   each device runs its operators strictly in an order. Messages that it sends and takes
            occupy it, too (kernels/simulation/occupation.py). A message for each (tensor,
            destination device) is queued when the producer finishes. From CUT_THRESHOLD_BYTES on, a
            message is cut over the rails in proportion to the pair's rates (nccl: equally over the
            rails with a rate); a smaller one takes the fastest. What parts get is the sharing's:
  strict, even  each (source device, destination device, rail) is a first-come channel, on which a
                part takes p0 + part / rate; device pairs in use share the rate of their servers.
  unshaped      the heads of the channels share the NICs max-min fairly, beside the neighbour.
  guarantee     each pair has its minimum; what a sender has left is lent equally, never more than
                a receiver can take.
  job           each sender's most urgent part goes first, but after or beside what was handed over
                of others; receivers share fairly between senders.
msr         as contended, but through host memory: an accelerator takes its own transfer time to
            write a tensor and to read one, a CPU takes none, and no transfer waits for another
            (Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators").

Two devices of one server, or with a link of their own, are joined past the NICs by one first-come
channel (under thesis and msr no transfer waits there). A tensor of 0 bytes only orders operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.kernels.simulation.contention_free import contention_free
from placewire.optimizer.kernels.simulation.first_come import (
    NOT_CHANGED,
    MessageLog,
    run_first_come,
)
from placewire.optimizer.kernels.simulation.occupation import occupation
from placewire.optimizer.kernels.simulation.peak_memory import peak_memory, static_memory
from placewire.optimizer.kernels.simulation.shared_rates import run_shared_rates
from placewire.optimizer.kernels.simulation.transfers import channel_rates, device_traffic
from placewire.optimizer.kernels.tables import Tables, tables_of
from placewire.optimizer.network.sharing import Discipline
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.timeline import (
    Order,
    Run,
    Timeline,
    TimelineMessage,
    arrival_seconds,
    make_timeline,
    messages_needed,
)

__all__ = ["Order", "Timeline", "TimelineMessage", "recorded_priority", "simulate"]


def simulate(
    problem: Problem,
    device: IntArray,
    priority: FloatArray | None = None,
    order: Sequence[Sequence[int]] | None = None,
    rates: FloatArray | None = None,
) -> Timeline:
    """Simulates operators on device int64[n]. They run in the order given, else by priority
    float64[n] (largest first among the ready), else in the recorded topological sort.

    rates float64[S, S, R] are required under strict sharing (each pair's cap) and guarantee sharing
    (each pair's minimum), and ignored under the others. Under `thesis` operators always run in the
    recorded sort.

    Raises ValueError where an order is not a permutation of its device's operators, where orders
    wait for each other for ever, and where the model `msr` is used with several servers.
    """
    device = np.ascontiguousarray(device, dtype=np.int64)
    _check_devices(problem, device)
    network = _Network(problem, device, rates)
    if problem.model == "thesis":
        return _simulate_thesis(network)
    in_order = np.empty(0, dtype=np.int64)
    if order is not None:
        in_order = _flatten(device, order, len(problem.cluster.devices))
        priority = np.zeros(len(device))
    elif priority is None:
        priority = recorded_priority(problem)
    return _simulate_events(network, np.ascontiguousarray(priority, dtype=np.float64), in_order)


def recorded_priority(problem: Problem) -> FloatArray:
    """float64[n]: priorities by which operators run in the recorded topological sort."""
    priority = np.empty(problem.graph.operator_count)
    priority[problem.graph.topological_order] = -np.arange(problem.graph.operator_count)
    return priority


def _check_devices(problem: Problem, device: IntArray) -> None:
    n, devices = problem.graph.operator_count, len(problem.cluster.devices)
    if device.shape != (n,):
        raise ValueError(f"device has shape {device.shape}, expected ({n},)")
    if n and (device.min() < 0 or device.max() >= devices):
        raise ValueError(f"device numbers must lie in 0..{devices - 1}")
    if problem.model == "msr" and len(problem.cluster.servers) != 1:
        raise ValueError(
            f"the model msr is for one server whose devices share its memory, but the cluster has "
            f"{len(problem.cluster.servers)} servers: choose the model contended or thesis"
        )


def _flatten(device: IntArray, order: Sequence[Sequence[int]], devices: int) -> IntArray:
    if len(order) != devices:
        raise ValueError(f"order has {len(order)} devices, expected {devices}")
    for d, row in enumerate(order):
        if sorted(row) != np.flatnonzero(device == d).tolist():
            raise ValueError(f"order of device {d} is not a permutation of its operators")
    return np.array([i for row in order for i in row], dtype=np.int64)


class _Network:
    """The problem as compiled loops read it, and the rates that the decided rates put in force."""

    def __init__(self, problem: Problem, device: IntArray, rates: FloatArray | None) -> None:
        self.problem, self.device = problem, device
        self.tables = tables_of(problem)
        self.rates = problem.rates_in_force(rates)
        decided = problem.decided(rates)
        self.minimums = self.rates if decided is None else decided
        # Where a used pair has no rate, the loop for shared rates would report a deadlock; the
        # first-come loop finds that the step never ends.
        shares = problem.discipline not in (Discipline.NEVER_MEET, Discipline.FIRST_COME)
        self.shares_rates = shares and self._all_served()

    def _all_served(self) -> bool:
        tensor, destination = messages_needed(self.problem, self.device)
        source = self.device[self.problem.graph.tensor_producer[tensor]]
        server = self.problem.cluster.server_of_device
        served = self.tables.path_rate[source, destination] > 0
        served |= self.rates[server[source], server[destination]].sum(axis=1) > 0
        return bool(served.all())


def message_log(tables: Tables) -> MessageLog:
    """An empty log with room for all messages of a run: at most one per edge."""
    limit, rails = len(tables.consumers), tables.nic_rates.shape[1]
    return MessageLog(
        np.empty(limit, dtype=np.int64), np.empty(limit, dtype=np.int64),
        np.empty((limit, rails)), np.empty((limit, rails)),
    )  # fmt: skip


def _simulate_events(network: _Network, priority: FloatArray, order: IntArray) -> Timeline:
    """Simulates by priority float64[n], or strictly in the order int64[n], grouped by device, where
    it has entries."""
    tables, device = network.tables, network.device
    n = len(device)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(len(tables.producer))
    position = np.empty(n, dtype=np.int64)
    log, lasts = message_log(tables), occupation(tables, device)
    background = None
    if network.shares_rates:
        background = np.zeros_like(tables.nic_rates)
        count = run_shared_rates(
            tables, lasts, network.rates, network.minimums, device, priority, order, start, finish,
            sent, position, log, background,
        )  # fmt: skip
        complete = count >= 0
    else:
        channels = channel_rates(tables, device_traffic(tables, device), network.rates)
        _, count, handled = run_first_come(
            tables, lasts, device, priority, channels, False, order, start, finish, sent, position,
            log, *NOT_CHANGED,
        )  # fmt: skip
        complete = handled == n
    if not complete:
        raise ValueError("the orders of the devices wait for each other for ever (deadlock)")
    tensor, destination = log.tensor[:count], log.device[:count]
    parts = log.part_start[:count], log.part_finish[:count]
    sent[:] = 0.0
    np.maximum.at(sent, tensor, arrival_seconds(parts[1]))
    peak = peak_memory(tables, device, position, start, sent)
    run = Run(start, finish, position, tensor, destination, *parts, peak, background)
    return make_timeline(network.problem, device, network.rates, run)


def _simulate_thesis(network: _Network) -> Timeline:
    problem, tables, device = network.problem, network.tables, network.device
    n = len(device)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(len(tables.producer))
    position = np.empty(n, dtype=np.int64)
    contention_free(tables, device, network.rates, start, finish, sent, position)
    tensor, destination = messages_needed(problem, device)
    producer = problem.graph.tensor_producer[tensor]
    alone = problem.alone(network.rates)
    ends = device[producer], destination
    with np.errstate(divide="ignore"):
        took = alone.setup[ends] + tables.bits[tensor] / alone.rate[ends]
    rails = network.rates.shape[2]
    began = np.repeat(finish[producer][:, None], rails, axis=1)
    run = Run(
        start, finish, position, tensor, destination, began, began + took[:, None],
        static_memory(tables, device), None,
    )  # fmt: skip
    return make_timeline(problem, device, network.rates, run)
