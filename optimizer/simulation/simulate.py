"""A decision -> a Timeline: what runs and what is sent when, under the problem's named model.

thesis      a transfer takes p0 + bytes / b, b the sum of the pair's rates over the rails, and never
            waits for another; each device runs its operators in the graph's recorded topological
            sort (thesis, section 3.3); memory is the static sum of (3.2).
contended   a device runs its operators strictly in an order. One message per (tensor, destination
            device) is queued when its producer finishes. A message of CUT_THRESHOLD_BYTES or more
            is cut over the rails in proportion to the pair's rates (nccl: equally over those that
            have one); a smaller one takes the fastest. What parts meet is the sharing's:
  strict, even  each (source device, destination device, rail) is a first-come channel; a part on it
                takes p0 + part / rate. Device pairs in use of one server pair share its rate.
  unshaped      the heads of the channels share the NICs max-min fairly, beside the neighbour.
  guarantee     each pair has its minimum; what a sender has left is lent equally, never more than
                a receiver can take.
  job           each sender's most urgent part first; receivers share fairly between senders.
msr         as contended, through host memory: an accelerator takes its own transfer time to write a
            tensor and to read one, a CPU none, and nothing waits for another transfer (Tarnawski et
            al., "Efficient Algorithms for Device Placement of DNN Graph Operators").

Devices with a link of their own, and in one server, are joined past the NICs by one first-come
channel (under thesis and msr: without waiting). A tensor of 0 bytes only orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from placewire.optimizer.graph.operator_graph import FloatArray, IntArray
from placewire.optimizer.network.sharing import alone, decides_rates, decision, rates_in_force
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.timeline import (
    Order,
    Run,
    Timeline,
    TimelineMessage,
    arrival_seconds,
    device_offsets,
    make_timeline,
    messages_needed,
)

if TYPE_CHECKING:
    from placewire.optimizer.kernels.tables import Tables

__all__ = ["Order", "Timeline", "TimelineMessage", "recorded_priority", "simulate"]


def simulate(
    problem: Problem,
    device: IntArray,
    priority: FloatArray | None = None,
    order: Sequence[Sequence[int]] | None = None,
    rates: FloatArray | None = None,
) -> Timeline:
    """The timeline of operators on device int64[n], by explicit order, else by priority float64[n]
    (largest first among the ready), else by the recorded topological sort as priority.

    rates float64[S, S, R] are required under strict (each pair's cap) and guarantee sharing (its
    minimum) and ignored under the others. Under `thesis` the order is the recorded sort, whatever
    is asked.

    Raises ValueError where an order is not a permutation of its device's operators, where orders
    wait for each other for ever, and where the model `msr` is asked for several servers.
    """
    device = np.ascontiguousarray(device, dtype=np.int64)
    _check_devices(problem, device)
    network = _Network(problem, device, rates)
    if problem.model == "thesis":
        return _simulate_thesis(network)
    if order is None:
        if priority is None:
            priority = recorded_priority(problem)
        return _simulate_listed(network, np.asarray(priority, dtype=np.float64))
    return _simulate_ordered(network, _flatten(device, order, len(problem.cluster.devices)))


def recorded_priority(problem: Problem) -> FloatArray:
    """float64[n]: earlier in the recorded topological sort is more urgent."""
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
            f"model msr is of one server whose devices share its memory; the cluster has "
            f"{len(problem.cluster.servers)} servers: choose the model contended or thesis"
        )


def _flatten(device: IntArray, order: Sequence[Sequence[int]], devices: int) -> IntArray:
    if len(order) != devices:
        raise ValueError(f"order has {len(order)} devices, expected {devices}")
    for d, row in enumerate(order):
        if sorted(row) != np.flatnonzero(device == d).tolist():
            raise ValueError(f"order of device {d} is not a permutation of its operators")
    return np.array([i for row in order for i in row], dtype=np.int64)


def _grouped(device: IntArray, position: IntArray) -> IntArray:
    return np.lexsort((position, device)).astype(np.int64)


class _Network:
    """The problem as the compiled loops read it, and the rates that a decision puts in force."""

    def __init__(self, problem: Problem, device: IntArray, rates: FloatArray | None) -> None:
        from placewire.optimizer.kernels.tables import CHANNELS, FREE, make_tables

        self.problem, self.device = problem, device
        self.tables: Tables = make_tables(problem)
        self.rates = rates_in_force(problem, rates)
        self.minimums = decision(problem, rates) if decides_rates(problem) else self.rates
        # Where a used pair has no rate at all the step never ends, however the others share.
        self.is_fluid = self.tables.discipline not in (CHANNELS, FREE) and self._all_served()

    def _all_served(self) -> bool:
        tensor, destination = messages_needed(self.problem, self.device)
        source = self.device[self.problem.graph.tensor_producer[tensor]]
        server = self.problem.cluster.server_of_device
        served = self.tables.path_rate[source, destination] > 0
        served |= self.rates[server[source], server[destination]].sum(axis=1) > 0
        return bool(served.all())

    def channels(self) -> FloatArray:
        """float64[D, D, R]"""
        from placewire.optimizer.kernels.simulation.network import channel_rates, device_traffic

        return channel_rates(self.tables, device_traffic(self.tables, self.device), self.rates)


class _Record:
    """Room for the messages of one run: M = number of edges at most."""

    def __init__(self, tables: Tables) -> None:
        limit, rails = len(tables.consumers), tables.nic_rates.shape[1]
        self.tensor = np.empty(limit, dtype=np.int64)
        self.device = np.empty(limit, dtype=np.int64)
        self.part_start = np.empty((limit, rails))
        self.part_finish = np.empty((limit, rails))

    def arrays(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        return self.tensor, self.device, self.part_start, self.part_finish


def _simulate_listed(network: _Network, priority: FloatArray) -> Timeline:
    """List scheduling decides the order; the timeline is that of the order, run strictly."""
    from placewire.optimizer.kernels.simulation.fluid import fluid
    from placewire.optimizer.kernels.simulation.schedule import by_priority

    tables, device = network.tables, network.device
    n = len(device)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(len(tables.producer))
    position = np.empty(n, dtype=np.int64)
    if network.is_fluid:
        empty = np.empty(0, dtype=np.int64)
        fluid(
            tables, network.rates, network.minimums, device, priority, empty, start, finish, sent,
            position, *_Record(tables).arrays(), np.empty((0, 0)),
        )  # fmt: skip
    else:
        by_priority(tables, device, priority, network.channels(), start, finish, sent, position)
    timeline = _simulate_ordered(network, _grouped(device, position))
    listed = finish.max(initial=0.0)
    assert not np.isfinite(listed) or abs(timeline.step_seconds - listed) <= 1e-9 * listed
    return timeline


def _simulate_ordered(network: _Network, flat: IntArray) -> Timeline:
    from placewire.optimizer.kernels.simulation.fluid import fluid
    from placewire.optimizer.kernels.simulation.memory import peak_memory
    from placewire.optimizer.kernels.simulation.schedule import by_order

    tables, device = network.tables, network.device
    n, devices = len(device), len(tables.server)
    offsets = device_offsets(device, devices)
    start, finish, sent = np.empty(n), np.empty(n), np.zeros(len(tables.producer))
    record = _Record(tables)
    background = None
    if network.is_fluid:
        background = np.zeros_like(tables.nic_rates)
        count = fluid(
            tables, network.rates, network.minimums, device, np.zeros(n), flat, start, finish, sent,
            np.empty(n, dtype=np.int64), *record.arrays(), background,
        )  # fmt: skip
    else:
        channels = network.channels()
        count = by_order(tables, device, flat, offsets, channels, start, finish, *record.arrays())
    if count < 0:
        raise ValueError("the orders of the devices wait for each other for ever (deadlock)")
    tensor, destination = record.tensor[:count], record.device[:count]
    parts = record.part_start[:count], record.part_finish[:count]
    sent[:] = 0.0
    np.maximum.at(sent, tensor, arrival_seconds(parts[1]))
    position = np.empty(n, dtype=np.int64)
    position[flat] = np.arange(n) - offsets[device[flat]]
    peak = peak_memory(tables, device, position, start, sent)
    run = Run(start, finish, flat, tensor, destination, *parts, peak, background)
    return make_timeline(network.problem, device, network.rates, run)


def _simulate_thesis(network: _Network) -> Timeline:
    from placewire.optimizer.kernels.simulation.memory import static_memory
    from placewire.optimizer.kernels.simulation.schedule import contention_free

    problem, tables, device = network.problem, network.tables, network.device
    n = len(device)
    start, finish, sent = np.empty(n), np.empty(n), np.empty(len(tables.producer))
    position = np.empty(n, dtype=np.int64)
    contention_free(
        tables, device, tables.topological, network.rates, start, finish, sent, position
    )
    tensor, destination = messages_needed(problem, device)
    producer = problem.graph.tensor_producer[tensor]
    setup, rate = alone(problem, network.rates)
    ends = device[producer], destination
    with np.errstate(divide="ignore"):
        took = setup[ends] + tables.bits[tensor] / rate[ends]
    rails = network.rates.shape[2]
    began = np.repeat(finish[producer][:, None], rails, axis=1)
    run = Run(
        start, finish, _grouped(device, position), tensor, destination, began,
        began + took[:, None], static_memory(tables, device), None,
    )  # fmt: skip
    return make_timeline(problem, device, network.rates, run)
