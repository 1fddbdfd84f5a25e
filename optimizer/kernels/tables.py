"""Turns a problem into what compiled loops can read: contiguous arrays in one named tuple."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.graph.operator_graph import TUPLE_ITEM
from placewire.optimizer.network.nics import capacity_of, network_limits, widest_rates
from placewire.optimizer.network.sharing import Discipline
from placewire.optimizer.network.transfers import with_a_rail
from placewire.optimizer.problem import Problem

# Disciplines as integers, which compiled code can compare.
NEVER_MEET, FIRST_COME = int(Discipline.NEVER_MEET), int(Discipline.FIRST_COME)
MAX_MIN, LENDING = int(Discipline.MAX_MIN), int(Discipline.LENDING)
MOST_URGENT = int(Discipline.MOST_URGENT)
_KEPT = "_tables"


class Tables(NamedTuple):
    """A problem of n operators, m tensors, D devices, S servers and R rails. R is at least 1: a
    cluster without rails gets one that carries nothing.

    seconds float64[n, D]; topological int64[n]; bits float64[m] of each tensor; the three CSR pairs
    of OperatorGraph; memory in bytes as float64; is_view bool[n]: the operator's output lies in
    another operator's storage; allocator int64[n]: the operator at whose start this operator's
    storage appears; static_bytes float64[n]: the operator's memory in the sum of thesis (3.2).

    discipline: one of the above. lends: decided rates are minimums, and pairs may borrow on top.
    nic_rates float64[S, R]: what the job may count on of each NIC. limit_groups int64[R, S, S, K]:
    the groups of pairs that are limited together (network.nics.RateLimits). For each group,
    float64[R, G]: limit_capacity is what the job may count on, line_rates what the NIC or uplink
    carries, neighbour_rates what others want of it. worthwhile float64[S, S, R]: what a pair could
    have alone on the rails that serve it; least_rates: what it keeps at least of that where it is
    in use. path_setup, path_rate float64[D, D]: the path that joins two
    devices past the NICs, on which messages queue where paths_queue is set. alone_setup, alone_rate
    float64[D, D]: a transfer that meets no other, each pair at its widest rate. cuts_equally: the
    parts of a large message are equal. window_bits float64[S, S, R]: what is handed over of a
    pair's messages at most, which a more urgent one does not overtake under MOST_URGENT;
    low_water_bits float64[S, R]: how little is left of the most urgent message that a NIC sends
    when half a window of the next one to another receiver is handed over.
    message_seconds, message_seconds_per_bit: what a message takes of each of its two devices.
    """

    seconds: FloatArray
    topological: IntArray
    producer: IntArray
    bits: FloatArray
    consumers_start: IntArray
    consumers: IntArray
    inputs_start: IntArray
    inputs: IntArray
    outputs_start: IntArray
    outputs: IntArray
    server: IntArray
    discipline: int
    lends: bool
    nic_rates: FloatArray
    limit_groups: IntArray
    limit_capacity: FloatArray
    line_rates: FloatArray
    neighbour_rates: FloatArray
    worthwhile: FloatArray
    least_rates: FloatArray
    path_setup: FloatArray
    path_rate: FloatArray
    paths_queue: bool
    alone_setup: FloatArray
    alone_rate: FloatArray
    setup_seconds: float
    cuts_equally: bool
    window_bits: FloatArray
    low_water_bits: FloatArray
    message_seconds: float
    message_seconds_per_bit: float
    weight_bytes: FloatArray
    activation_bytes: FloatArray
    workspace_bytes: FloatArray
    is_view: BoolArray
    allocator: IntArray
    static_bytes: FloatArray
    memory_bytes: FloatArray


def view_operators(problem: Problem) -> BoolArray:
    """bool[n]: the operators that allocate nothing and yet have an output of some size.

    The graph does not say which input such an output lies in. Each is taken to keep the storage of
    all its inputs alive, which errs on the safe side.
    """
    graph = problem.graph
    sized = np.zeros(graph.operator_count, dtype=np.bool_)
    sized[graph.tensor_producer[graph.tensor_bytes > 0]] = True
    views: BoolArray = sized & (graph.activation_bytes == 0)
    return views


def allocating_operators(problem: Problem) -> IntArray:
    """int64[n]: the operator itself, except for an item of a tuple: its storage is there as soon as
    the tuple, so its allocator is the operator that makes the tuple."""
    graph = problem.graph
    allocator = np.arange(graph.operator_count)
    for i in np.flatnonzero(np.array(graph.types) == TUPLE_ITEM).tolist():
        inputs = graph.input_tensors(i)
        if len(inputs) == 1 and graph.tensor_bytes[inputs[0]] == 0:
            allocator[i] = graph.tensor_producer[inputs[0]]
    return allocator


def tables_of(problem: Problem) -> Tables:
    """Makes the tables of a problem once and keeps them with it; callers only read them."""
    if _KEPT not in problem.__dict__:
        problem.__dict__[_KEPT] = _made(problem)
    tables: Tables = problem.__dict__[_KEPT]
    return tables


def _made(problem: Problem) -> Tables:
    graph, cluster = problem.graph, problem.cluster
    paths, alone = problem.paths, problem.alone(widest_rates(problem.usable))
    limits = network_limits(problem.usable.with_a_rail())
    lines = network_limits(capacity_of(cluster, cluster.nic_rates).with_a_rail())
    # Others want something of NICs only: a plan states what the job may have of an uplink.
    wanted, background = np.zeros_like(limits.capacity), with_a_rail(cluster.background).T
    wanted[:, : 2 * len(cluster.servers)] = np.concatenate([background, background], axis=1)
    windows = with_a_rail(cluster.window_bytes)
    inputs_start, inputs = graph.inputs
    outputs_start, outputs = graph.outputs

    def integers(array: IntArray) -> IntArray:
        return np.array(array, dtype=np.int64, order="C")

    def floats(array: IntArray | FloatArray) -> FloatArray:
        return np.array(array, dtype=np.float64, order="C")

    return Tables(
        seconds=floats(problem.seconds), topological=integers(graph.topological_order),
        producer=integers(graph.tensor_producer), bits=floats(graph.tensor_bytes) * 8.0,
        consumers_start=integers(graph.consumers_start), consumers=integers(graph.consumers),
        inputs_start=integers(inputs_start), inputs=integers(inputs),
        outputs_start=integers(outputs_start), outputs=integers(outputs),
        server=integers(cluster.server_of_device), discipline=int(problem.discipline),
        lends=problem.policy.discipline == LENDING,
        nic_rates=floats(with_a_rail(problem.usable_nic_rates)),
        limit_groups=integers(limits.groups), limit_capacity=floats(limits.capacity),
        line_rates=floats(lines.capacity), neighbour_rates=floats(wanted),
        worthwhile=floats(with_a_rail(problem.worthwhile_rates)),
        least_rates=floats(with_a_rail(problem.least_rates)),
        path_setup=floats(paths.setup), path_rate=floats(paths.rate),
        paths_queue=problem.model == "contended",
        alone_setup=floats(alone.setup), alone_rate=floats(alone.rate),
        setup_seconds=float(cluster.setup_latency_seconds), cuts_equally=problem.cuts_equally,
        window_bits=floats(np.minimum(windows[:, None], windows[None]) * 8.0),
        low_water_bits=floats(with_a_rail(cluster.low_water_bytes) * 8.0),
        message_seconds=problem.message_seconds,
        message_seconds_per_bit=problem.message_seconds_per_byte / 8.0,
        weight_bytes=floats(graph.weight_bytes), activation_bytes=floats(graph.activation_bytes),
        workspace_bytes=floats(graph.workspace_bytes), is_view=view_operators(problem),
        allocator=integers(allocating_operators(problem)),
        static_bytes=floats(graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes),
        memory_bytes=floats(cluster.memory_bytes),
    )  # fmt: skip
