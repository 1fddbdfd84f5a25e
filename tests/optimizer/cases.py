"""Small graphs, clusters and devices for the optimizer's tests: built by hand, or drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from placewire.optimizer.cluster import Cluster, Device, Nic, Pod, Server, Uplink
from placewire.optimizer.graph.operator_graph import (
    TUPLE_ITEM,
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.network.nics import Capacity, widest_rates
from placewire.optimizer.problem import Problem

# At 8 Mbit/s a byte takes a microsecond, so that worked numbers are easy to read.
BYTE_PER_MICROSECOND = 8e6


def cluster(
    servers: int = 2,
    rates: Sequence[float] = (BYTE_PER_MICROSECOND,),
    *,
    devices: int = 1,
    memory: int = 10**12,
    latency: float = 0.0,
    types: Sequence[str] | None = None,
    intra: float = BYTE_PER_MICROSECOND * 10,
) -> Cluster:
    """`servers` servers with one NIC per entry of rates, on rails a, b, …"""
    rails = "abcdefgh"
    return Cluster(
        servers=tuple(
            Server(
                name=f"s{k + 1}",
                devices=tuple(
                    Device(type=(types or ["cpu"] * servers)[k], memory_bytes=memory)
                    for _ in range(devices)
                ),
                nics=tuple(
                    Nic(rail=rails[r], rate_bits_per_second=rate) for r, rate in enumerate(rates)
                ),
            )
            for k in range(servers)
        ),
        setup_latency_seconds=latency,
        intra_server_bits_per_second=intra,
    )


def podded(
    uplink: float = 1.0,
    *,
    nics: Sequence[float] = (1.0,),
    memory: int = 10**12,
    servers: int = 4,
    pods: Mapping[str, Sequence[str]] | None = None,
) -> Cluster:
    """Four servers, s1 and s2 in one pod, s3 and s4 in the other, unless servers and pods say
    otherwise. nics: of each server, and uplink: of each pod on each rail, in bytes per
    microsecond."""
    plain = cluster(servers, [rate * BYTE_PER_MICROSECOND for rate in nics], memory=memory)
    uplinks = tuple(
        Uplink(rail=rail, rate_bits_per_second=uplink * BYTE_PER_MICROSECOND)
        for rail in plain.rails
    )
    servers_of = pods or {"p1": ("s1", "s2"), "p2": ("s3", "s4")}
    made = [
        Pod(name=name, servers=tuple(members), uplinks=uplinks)
        for name, members in servers_of.items()
    ]
    return Cluster.model_validate(plain.model_dump() | {"pods": [pod.model_dump() for pod in made]})


def graph(
    seconds: dict[str, float],
    tensors: Sequence[tuple[str, Sequence[str], int]],
    **columns: Mapping[str, object],
) -> OperatorGraph:
    """graph({"A": 1.0}, [("A", ["B"], 100)], weight_bytes={"A": 3})"""
    rows = [
        OperatorRow(
            id=name,
            type="op",
            seconds={"cpu": value},
            **{key: column[name] for key, column in columns.items() if name in column},  # type: ignore[arg-type]
        )
        for name, value in seconds.items()
    ]
    return build_graph(
        rows, [TensorRow(p, tuple(c), size) for p, c, size in tensors], device_types=["cpu"]
    )


def without_pods(nics: np.ndarray) -> Capacity:
    """What NICs float64[S, R] carry of a network in which nothing else limits."""
    return Capacity(nics, np.zeros((0, nics.shape[1])), np.zeros(len(nics), dtype=np.int64))


def full_rates(problem: Problem) -> np.ndarray:
    return widest_rates(problem.usable)


@st.composite
def graphs(draw: st.DrawFn, largest: int = 9) -> OperatorGraph:
    """Acyclic graphs, recorded in any order, with tensors of no, few and many bytes, views, items
    of tuples, weights and up to two co-location groups."""
    n = draw(st.integers(1, largest))
    rows = []
    for i in range(n):
        rows.append(
            OperatorRow(
                id=f"o{i}",
                type=draw(st.sampled_from(["op", "op", "getitem"])),
                seconds={"cpu": draw(st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.25]))},
                weight_bytes=draw(st.sampled_from([0, 1000, 50_000])),
                activation_bytes=draw(st.sampled_from([0, 2000, 70_000])),
                workspace_bytes=draw(st.sampled_from([0, 10_000])),
                colocation=draw(st.sampled_from([None, None, None, "k", "l"])),
            )
        )
    tensors = []
    for i in range(n - 1):
        for _ in range(draw(st.integers(0, 2))):
            readers = draw(st.lists(st.integers(i + 1, n - 1), min_size=1, max_size=3, unique=True))
            size = draw(st.sampled_from([0, 900, 65_535, 65_536, 200_000]))
            tensors.append(TensorRow(f"o{i}", tuple(f"o{j}" for j in readers), size))
    return build_graph(draw(st.permutations(rows)), tensors, device_types=["cpu"])


def described(made: OperatorGraph) -> OperatorGraph:
    """The same graph with ids that are paths and types that backends fuse, for reductions that need
    them."""
    kinds = (
        "aten.convolution.default", "BatchNormalization", "Relu", "aten.add.Tensor", "Relu",
        "aten.mm.default", "aten.view.default", "Sum",
    )  # fmt: skip
    place = np.argsort(made.topological_order).tolist()
    types = [
        kind if kind == TUPLE_ITEM else kinds[k % len(kinds)]
        for k, kind in zip(place, made.types, strict=True)
    ]
    ids = [f"part{k % 2}/block{k % 3}/{name}" for k, name in zip(place, made.ids, strict=True)]
    return replace(made, ids=tuple(ids), types=tuple(types))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    servers = draw(st.integers(2, 4))
    rails = draw(st.integers(1, 2))
    rate = st.sampled_from([BYTE_PER_MICROSECOND, 3 * BYTE_PER_MICROSECOND])
    made = [
        Server(
            name=f"s{k}",
            devices=tuple(
                Device(type="cpu", memory_bytes=10**9) for _ in range(draw(st.integers(1, 2)))
            ),
            nics=tuple(Nic(rail="ab"[r], rate_bits_per_second=draw(rate)) for r in range(rails)),
        )
        for k in range(servers)
    ]
    return Cluster(
        servers=tuple(made),
        setup_latency_seconds=draw(st.sampled_from([0.0, 0.002])),
        message_seconds=draw(st.sampled_from([0.0, 0.001])),
        message_seconds_per_byte=draw(st.sampled_from([0.0, 1e-6])),
        intra_server_bits_per_second=1e8,
    )


@st.composite
def devices_of(draw: st.DrawFn, problem: Problem) -> np.ndarray:
    """A device per operator, the same for all of a co-location group."""
    choice = st.integers(0, len(problem.cluster.devices) - 1)
    device = [draw(choice) for _ in problem.graph.ids]
    home: dict[int, int] = {}
    for i, key in enumerate(problem.graph.colocation.tolist()):
        if key >= 0:
            device[i] = home.setdefault(key, device[i])
    return np.array(device, dtype=np.int64)


def layered(layers: int, width: int, *, weight: int = 0, seed: int = 0, spread: float = 0.5):
    """Forward and backward passes of `layers`, each `width` parallel branches of unlike cost."""
    generator = np.random.default_rng(seed)
    rows, tensors = [], []
    for k in range(layers):
        for w in range(width):
            seconds = {"cpu": float(generator.uniform(1 - spread, 1 + spread)) * 1e-2}
            group = f"{k}.{w}"
            rows.append(
                OperatorRow(
                    f"w{k}.{w}", "weight", {"cpu": 0.0}, weight_bytes=weight, colocation=group
                )
            )
            rows.append(OperatorRow(f"f{k}.{w}", "op", seconds, "", 0, 4000))
            rows.append(OperatorRow(f"b{k}.{w}", "op", seconds, "", 0, 4000))
            rows.append(OperatorRow(f"u{k}.{w}", "update", {"cpu": 1e-4}, colocation=group))
            tensors.append(TensorRow(f"w{k}.{w}", (f"f{k}.{w}", f"b{k}.{w}", f"u{k}.{w}"), 8000))
            before = [f"f{k}.{w}"] if k == layers - 1 else [f"b{k + 1}.{w}"]
            after = [f"f{k + 1}.{w}"] if k < layers - 1 else []
            tensors.append(TensorRow(f"f{k}.{w}", (*after, f"b{k}.{w}"), 4000))
            if before[0][0] == "b":
                tensors.append(TensorRow(before[0], (f"b{k}.{w}",), 4000))
            tensors.append(TensorRow(f"b{k}.{w}", (f"u{k}.{w}",), 4000))
    return build_graph(rows, tensors)
