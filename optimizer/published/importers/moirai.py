"""Reads the graphs of "Moirai: Towards Optimal Placement for Distributed Inference on Heterogeneous
Devices", as converted from the spreadsheets of its authors.

There are four unlike devices, each in a server of its own, with four `device_memory_bytes`. A node
has `id`, `time_ms` per device, and `memory_bytes`, which it holds all the time. An edge has
`source`, `target` and `transfer_ms[from][to]`.

An edge's times are one size times a factor per ordered pair of devices (to the five decimals that
they are given in), so that each pair gets a link of its own rate. The file does not state the
sizes; only their products with the factors matter. They are fixed by giving the fastest link 100
Gbit/s, the InfiniBand of the paper's testbed (section IV-A): GoogLeNet's tensors then have about
the bytes of their shapes in float32 (224 x 224 images, one at a time). An operator has one output,
and all its edges must agree on its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster, Device, Link, Server
from placewire.optimizer.graph.importer import Imported
from placewire.optimizer.graph.operator_graph import GraphError, OperatorRow, TensorRow, build_graph
from placewire.optimizer.published.importers.foreign_rows import (
    Row,
    distinct_ids,
    edge_ends,
    number,
    rows,
)

DEVICES = ("rtx2080ti", "t4", "p4", "rtx3060ti")
FASTEST_BITS_PER_SECOND = 100e9
# A time of five decimals of a millisecond may be off by half of the last, and so may the fit.
_ROUNDED_MS = 2e-5
_RELATIVE = 1e-3
_PAIRS = [(a, b) for a in range(len(DEVICES)) for b in range(len(DEVICES)) if a != b]


def read_moirai(document: Any, name: str = "moirai") -> Imported:
    """Raises GraphError naming the row and the key, or the edge whose times fit no common rates."""
    nodes = distinct_ids(rows(document, "nodes"))
    edges = rows(document, "edges")
    ends = [edge_ends(row, nodes, "source", "target") for row in edges]
    times = np.array([_transfer_ms(row) for row in edges]).reshape(len(edges), len(_PAIRS))
    factors = _factors(times)
    tensors = _tensors(edges, ends, _sizes(edges, times, factors))
    operators = [_operator(identifier, row) for identifier, row in nodes.items()]
    notes = {"format": "moirai", "fastest_bits_per_second": FASTEST_BITS_PER_SECOND}
    graph = build_graph(operators, tensors, name=name, device_types=DEVICES, notes=notes)
    return Imported(graph, _cluster(document, factors))


def _operator(identifier: str, row: Row) -> OperatorRow:
    times = _list(row.value("time_ms"), f"{row.where}: time_ms")
    return OperatorRow(
        id=identifier,
        type="operator",
        seconds={device: ms / 1e3 for device, ms in zip(DEVICES, times, strict=True)},
        weight_bytes=round(row.number("memory_bytes", 0.0)),
    )


def _list(value: Any, where: str) -> list[float]:
    if not isinstance(value, list) or len(value) != len(DEVICES):
        raise GraphError(f"{where} is {value!r}, expected {len(DEVICES)} numbers")
    return [number(one, f"{where}[{k}]") for k, one in enumerate(value)]


def _transfer_ms(row: Row) -> list[float]:
    """One time per ordered pair of devices."""
    where = f"{row.where}: transfer_ms"
    table = row.value("transfer_ms")
    if not isinstance(table, list) or len(table) != len(DEVICES):
        raise GraphError(f"{where} is {table!r}, expected {len(DEVICES)} rows")
    matrix = [_list(line, f"{where}[{k}]") for k, line in enumerate(table)]
    if any(matrix[k][k] for k in range(len(DEVICES))):
        raise GraphError(f"{where}: a device takes time to send to itself")
    return [matrix[a][b] for a, b in _PAIRS]


def _factors(times: FloatArray) -> FloatArray:
    """float64[pairs]: seconds per bit of each pair, by least squares against the sum over pairs;
    the fastest pair has FASTEST_BITS_PER_SECOND."""
    reference = times.sum(axis=1)
    if not reference.any():
        return np.full(len(_PAIRS), 1 / FASTEST_BITS_PER_SECOND)
    fitted: FloatArray = (times * reference[:, None]).sum(axis=0) / (reference**2).sum()
    if not (fitted > 0).all():
        a, b = _PAIRS[int(fitted.argmin())]
        raise GraphError(f"edges: transfers from {DEVICES[a]} to {DEVICES[b]} take no time")
    factors: FloatArray = fitted / fitted.min() / FASTEST_BITS_PER_SECOND
    return factors


def _sizes(edges: Sequence[Row], times: FloatArray, factors: FloatArray) -> list[int]:
    """Whole bytes of each edge. Raises GraphError where the pairs' times imply unlike sizes."""
    bits = (times / 1e3) @ factors / (factors**2).sum()
    deviation = np.abs(bits[:, None] * factors * 1e3 - times)
    for row, wrong, stated in zip(edges, deviation, times, strict=True):
        excess = wrong - np.maximum(_ROUNDED_MS, _RELATIVE * stated)
        if (excess > 0).any():
            k = int(excess.argmax())
            a, b = _PAIRS[k]
            raise GraphError(
                f"{row.where}: transfer_ms[{a}][{b}] is {stated[k]:g}, off by {wrong[k]:.2g} ms "
                "from one rate per pair of devices: these transfers cannot be bytes over links"
            )
    return [round(float(one) / 8) for one in bits]


def _tensors(
    edges: Sequence[Row], ends: Sequence[tuple[str, str]], size: Sequence[int]
) -> list[TensorRow]:
    """One output per operator. Raises GraphError where its edges carry unlike sizes."""
    outputs: dict[str, tuple[int, str, dict[str, None]]] = {}
    for row, (source, target), count in zip(edges, ends, size, strict=True):
        first, where, readers = outputs.setdefault(source, (count, row.where, {}))
        # Sizes are computed from rounded times, so that those of one tensor may differ a little.
        if abs(first - count) > max(8.0, _RELATIVE * first):
            raise GraphError(
                f"{row.where}: takes another time than {where}, which leaves the same node "
                f"{source!r}, and an operator has one output"
            )
        readers[target] = None
    return [TensorRow(source, tuple(names), n) for source, (n, _, names) in outputs.items()]


def _cluster(document: Any, factors: FloatArray) -> Cluster:
    memory = _list(document.get("device_memory_bytes"), "device_memory_bytes")
    devices = [
        Device(type=name, memory_bytes=max(1, round(count)))
        for name, count in zip(DEVICES, memory, strict=True)
    ]
    return Cluster(
        servers=tuple(Server(name=one.type, devices=(one,), nics=()) for one in devices),
        setup_latency_seconds=0.0,
        intra_server_bits_per_second=FASTEST_BITS_PER_SECOND,  # unused: a server has one device
        links=tuple(
            Link(
                source=f"{DEVICES[a]}/0",
                destination=f"{DEVICES[b]}/0",
                setup_latency_seconds=0.0,
                rate_bits_per_second=1 / float(factor),
            )
            for (a, b), factor in zip(_PAIRS, factors, strict=True)
        ),
    )
