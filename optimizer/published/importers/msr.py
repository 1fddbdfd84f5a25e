"""Graphs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020).

`maxFPGAs` accelerators of `maxSizePerFPGA` bytes and `maxCPUs` processors are in one machine. A
node has `id`, `fpgaLatency` (where `supportedOnFpga`), `cpuLatency`, `size` bytes, and `colorClass`
(nodes of one class share a device). An edge has `sourceId`, `destId` and `cost`, the time between
an accelerator and the host's memory: between accelerators a transfer takes twice that, as the
simulator's model `msr` counts.

Units. The files name none. Latencies are milliseconds: a training step of ResNet-50 then takes 0.46
s and a forward pass of three layers of BERT 49 ms on one accelerator, as on the hardware of 2020.
`cost` is in the same unit, because the paper adds the two. In the operator graphs it corresponds to
2 GiB/s. In the layer graphs it is kept a thousandth of that, as published: their transfers cost
next to nothing.

Bytes. An edge has a `size`, but the paper's time is `cost`, and some edges of the layer graphs
disagree (their `cost` follows the producer). So the rate is the median of size / cost, which is the
machine's intra-server rate, and a tensor has the bytes that its cost is worth at this rate: every
transfer then takes what the file says. A producer's edges of one cost are one tensor.

Types. The operator graphs were made from ONNX models, and name most nodes after their operator:
`Conv12`, `MatMul7_Grad/Gemm_3`. A further output of an operator is a separate node in them, named
after the operator and the output (`LayerNormalization3_saved_mean_1`): an item of a tuple. Where a
name tells no type, as in the layer graphs and for weights, the type is the pass of the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from placewire.optimizer.cluster import Cluster, Device, Server
from placewire.optimizer.graph.importer import Imported
from placewire.optimizer.graph.operator_graph import (
    TUPLE_ITEM,
    GraphError,
    OperatorRow,
    build_graph,
)
from placewire.optimizer.published.importers.foreign_rows import (
    Row,
    distinct_ids,
    edge_ends,
    number,
    rows,
    tensors_by_size,
)

ACCELERATOR, CPU = "accelerator", "cpu"
_UNLIMITED_BYTES = 2**50
# Where a smaller share of the edges has the common rate, size and cost do not belong together.
_LEAST_AGREEING = 0.5
_SAME_RATE = 1e-3

Devices = Literal["all", "accelerator"]

# An operator's name is its type and a number; a gradient's follows the name of its operator.
_NAMED = re.compile(r"(?:[^/]+_Grad/)?([A-Z][A-Za-z]*?)_?\d+")


def read_msr(document: Any, name: str = "msr", devices: Devices = "all") -> Imported:
    """devices: "accelerator" leaves the processors out of the graph's times and of the cluster, so
    that the graph can be placed on other clusters. Raises GraphError naming the row and the key."""
    nodes = distinct_ids(rows(document, "nodes"))
    edges = rows(document, "edges")
    types = (ACCELERATOR,) if devices == "accelerator" else (ACCELERATOR, CPU)
    rate, agreeing = _rate(edges)
    ends = [edge_ends(row, nodes, "sourceId", "destId") for row in edges]
    sizes = [round(row.number("cost") / 1e3 * rate) for row in edges]
    tensors = tensors_by_size(ends, sizes)
    names = {str(row.values.get("name", "")) for row in nodes.values()}
    operators = [_operator(identifier, row, types, names) for identifier, row in nodes.items()]
    notes = {"format": "msr", "bytes_per_second": rate, "edges_whose_size_agrees": agreeing}
    graph = build_graph(operators, tensors, name=name, device_types=types, notes=notes)
    return Imported(graph, _cluster(document, types, rate))


def _operator(
    identifier: str, row: Row, types: Sequence[str], names: Collection[str]
) -> OperatorRow:
    seconds: dict[str, float] = {}
    if row.value("supportedOnFpga"):
        seconds[ACCELERATOR] = row.number("fpgaLatency") / 1e3
    if CPU in types and row.values.get("cpuLatency") is not None:
        seconds[CPU] = row.number("cpuLatency") / 1e3
    if not seconds:
        raise GraphError(f"{row.where}: runs on none of {', '.join(types)}")
    colour = row.values.get("colorClass")
    return OperatorRow(
        id=identifier,
        type=_type(row, names),
        seconds=seconds,
        weight_bytes=round(row.number("size", 0.0)),
        colocation=None if colour is None else str(colour),
    )


def _type(row: Row, names: Collection[str]) -> str:
    """names: those of all nodes."""
    name = str(row.values.get("name", ""))
    if found := _NAMED.fullmatch(name):
        return found[1]
    if (found := _NAMED.match(name)) and found[0] in names and name[found.end()] == "_":
        return TUPLE_ITEM
    return "backward" if row.values.get("isBackwardNode") else "forward"


def _rate(edges: Sequence[Row]) -> tuple[float, int]:
    """The median rate in bytes per second, and how many edges have it. Raises GraphError where
    fewer than half of the edges with size and cost do."""
    both = [(row.number("size", 0.0), row.number("cost") / 1e3) for row in edges]
    found = [size / cost for size, cost in both if size > 0 and cost > 0]
    if not found:
        return float(2**31), 0  # 2 GiB/s where nothing is sent, or no size is stated
    rate = median(found)
    agreeing = sum(abs(one / rate - 1) <= _SAME_RATE for one in found)
    if agreeing < _LEAST_AGREEING * len(found):
        raise GraphError(
            f"edges: size / cost is one rate for only {agreeing} of {len(found)} edges, so that "
            "transfers cannot be expressed as bytes at one rate"
        )
    return rate, agreeing


def _cluster(document: Mapping[str, Any], types: Sequence[str], bytes_per_second: float) -> Cluster:
    def count(key: str) -> int:
        return int(number(document.get(key, 0), key))

    memory = int(number(document.get("maxSizePerFPGA"), "maxSizePerFPGA"))
    devices = [Device(type=ACCELERATOR, memory_bytes=memory)] * count("maxFPGAs")
    if CPU in types:
        devices += [Device(type=CPU, memory_bytes=_UNLIMITED_BYTES)] * count("maxCPUs")
    if not devices:
        raise GraphError("maxFPGAs and maxCPUs leave no device")
    return Cluster(
        servers=(Server(name="machine", devices=tuple(devices), nics=()),),
        setup_latency_seconds=0.0,
        intra_server_bits_per_second=bytes_per_second * 8,
    )
