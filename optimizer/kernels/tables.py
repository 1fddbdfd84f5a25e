"""A problem as the compiled loops read it: plain contiguous arrays in one named tuple."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimizer.problem import CUT_THRESHOLD_BYTES, FLOOR_FRACTION, Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Tables(NamedTuple):
    """n operators, m tensors, D devices, S servers, R rails (at least 1: an empty one is added).

    seconds float64[n, D]; topological int64[n]; bits float64[m] of each tensor; the three CSR pairs
    of OperatorGraph; memory in bytes as float64; is_view bool[n]: the operator's output is somebody
    else's storage; static_bytes float64[n]: the operator's memory in the sum of thesis (3.2).
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
    nic_rates: FloatArray
    setup_seconds: float
    intra_rate: float
    cut_bits: float
    floor: float
    weight_bytes: FloatArray
    activation_bytes: FloatArray
    workspace_bytes: FloatArray
    is_view: NDArray[np.bool_]
    static_bytes: FloatArray
    memory_bytes: FloatArray


def view_operators(problem: Problem) -> NDArray[np.bool_]:
    """bool[n]: allocates nothing and yet has an output of some size, so that it keeps alive what
    its inputs stand on (the graph does not name the alias; this errs on the safe side)."""
    graph = problem.graph
    sized = np.zeros(graph.operator_count, dtype=np.bool_)
    sized[graph.tensor_producer[graph.tensor_bytes > 0]] = True
    views: NDArray[np.bool_] = sized & (graph.activation_bytes == 0)
    return views


def make_tables(problem: Problem) -> Tables:
    graph, cluster = problem.graph, problem.cluster
    nic_rates = cluster.nic_rates
    if nic_rates.shape[1] == 0:
        nic_rates = np.zeros((len(cluster.servers), 1))
    inputs_start, inputs = graph.inputs
    outputs_start, outputs = graph.outputs

    def integers(array: IntArray) -> IntArray:
        return np.array(array, dtype=np.int64, order="C")

    def floats(array: IntArray | FloatArray) -> FloatArray:
        return np.array(array, dtype=np.float64, order="C")

    return Tables(
        seconds=floats(problem.seconds),
        topological=integers(graph.topological_order),
        producer=integers(graph.tensor_producer),
        bits=floats(graph.tensor_bytes) * 8.0,
        consumers_start=integers(graph.consumers_start),
        consumers=integers(graph.consumers),
        inputs_start=integers(inputs_start),
        inputs=integers(inputs),
        outputs_start=integers(outputs_start),
        outputs=integers(outputs),
        server=integers(cluster.server_of_device),
        nic_rates=floats(nic_rates),
        setup_seconds=float(cluster.setup_latency_seconds),
        intra_rate=float(cluster.intra_server_bits_per_second),
        cut_bits=CUT_THRESHOLD_BYTES * 8.0,
        floor=FLOOR_FRACTION,
        weight_bytes=floats(graph.weight_bytes),
        activation_bytes=floats(graph.activation_bytes),
        workspace_bytes=floats(graph.workspace_bytes),
        is_view=view_operators(problem),
        static_bytes=floats(graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes),
        memory_bytes=floats(cluster.memory_bytes),
    )
