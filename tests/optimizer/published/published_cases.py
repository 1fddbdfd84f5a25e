"""Graphs and devices for the tests of published methods: costs as papers print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from placewire.optimizer.cluster import Cluster, Device, Server
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.transfer_times import transfer_times
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem
from tests.optimizer.cases import clusters, graphs
from tests.optimizer.problems import SHARINGS

# A transfer of this many bytes takes a second on devices_in_one_server.
SECOND = 1_000_000


def devices_in_one_server(types: Sequence[str], *, memory: int = 10**12) -> Cluster:
    """Devices that are joined so that a transfer between any two takes bytes / SECOND."""
    return Cluster(
        servers=(
            Server(
                name="s1",
                devices=tuple(Device(type=kind, memory_bytes=memory) for kind in types),
                nics=(),
            ),
        ),
        setup_latency_seconds=0.0,
        intra_server_bits_per_second=SECOND * 8.0,
    )


def printed(
    seconds: Mapping[str, Sequence[float]],
    edges: Mapping[tuple[str, str], float],
    *,
    weight_bytes: Mapping[str, int] | None = None,
    memory: int = 10**12,
    sharing: str = "strict",
) -> Problem:
    """Costs per device and seconds per edge, each edge a tensor of its own."""
    kinds = [f"d{k}" for k in range(len(next(iter(seconds.values()))))]
    held = weight_bytes or {}
    rows = [
        OperatorRow(name, "op", dict(zip(kinds, costs, strict=True)),
                    weight_bytes=held.get(name, 0))
        for name, costs in seconds.items()
    ]  # fmt: skip
    tensors = [TensorRow(a, (b,), round(took * SECOND)) for (a, b), took in edges.items()]
    where = devices_in_one_server(kinds, memory=memory)
    return Problem(build_graph(rows, tensors), where, sharing)  # type: ignore[arg-type]


def alike(
    seconds: Mapping[str, float],
    edges: Mapping[tuple[str, str], float],
    devices: int,
    *,
    weight_bytes: Mapping[str, int] | None = None,
    memory: int = 10**12,
) -> Problem:
    return printed(
        {name: [cost] * devices for name, cost in seconds.items()},
        edges,
        weight_bytes=weight_bytes,
        memory=memory,
    )


def device_of(problem: Problem, device: np.ndarray) -> dict[str, int]:
    return dict(zip(problem.graph.ids, device.tolist(), strict=True))


def start_of(problem: Problem, priority: np.ndarray) -> dict[str, float]:
    """The starts of the schedule of a method that decides an order: minus its priorities."""
    return dict(zip(problem.graph.ids, (0.0 - priority).tolist(), strict=True))


def schedule_of(
    problem: Problem, solution: Solution
) -> tuple[dict[str, int], dict[str, float], float]:
    """(devices, starts, makespan) of a method's own schedule. Asserts that inputs have arrived and
    that a device does one thing at a time."""
    graph, device, start = problem.graph, solution.device, 0.0 - solution.priority
    n = graph.operator_count
    finish = start + problem.seconds[np.arange(n), device]
    times = transfer_times(problem)
    for i, j, e in zip(*(column.tolist() for column in graph.edges), strict=True):
        size, a, b = int(graph.tensor_bytes[e]), device[i], device[j]
        away = a != b and size > 0
        took = times.setup_seconds[a, b] + size * times.seconds_per_byte[a, b] if away else 0.0
        assert start[j] >= finish[i] + took - 1e-9, (graph.ids[i], graph.ids[j])
    for d in set(device.tolist()):
        # An operator that takes no time delays no other, and may start within another's time.
        mine = np.flatnonzero((device == d) & (finish > start))
        mine = mine[np.argsort(start[mine])]
        assert (finish[mine[:-1]] <= start[mine[1:]] + 1e-9).all()
    makespan = float(finish.max(initial=0.0))
    return device_of(problem, device), start_of(problem, solution.priority), makespan


@st.composite
def small_problems(draw: st.DrawFn, largest: int = 9) -> Problem:
    return Problem(draw(graphs(largest)), draw(clusters()), draw(st.sampled_from(SHARINGS)))


# Topcuoglu, Hariri, Wu 2002, figure 2: ten tasks on three processors.
HEFT_SECONDS = {
    "n1": (14, 16, 9), "n2": (13, 19, 18), "n3": (11, 13, 19), "n4": (13, 8, 17),
    "n5": (12, 13, 10), "n6": (13, 16, 9), "n7": (7, 15, 11), "n8": (5, 11, 14),
    "n9": (18, 12, 20), "n10": (21, 7, 16),
}  # fmt: skip
HEFT_EDGES = {
    ("n1", "n2"): 18, ("n1", "n3"): 12, ("n1", "n4"): 9, ("n1", "n5"): 11, ("n1", "n6"): 14,
    ("n2", "n8"): 19, ("n2", "n9"): 16, ("n3", "n7"): 23, ("n4", "n8"): 27, ("n4", "n9"): 23,
    ("n5", "n9"): 13, ("n6", "n8"): 15, ("n7", "n10"): 17, ("n8", "n10"): 11, ("n9", "n10"): 13,
}  # fmt: skip

# Arabnejad, Barbosa 2014, figure 1: ten tasks on three processors.
PEFT_SECONDS = {
    "t1": (22, 21, 36), "t2": (22, 18, 18), "t3": (32, 27, 43), "t4": (7, 10, 4),
    "t5": (29, 27, 35), "t6": (26, 17, 24), "t7": (14, 25, 30), "t8": (29, 23, 36),
    "t9": (15, 21, 8), "t10": (13, 16, 33),
}  # fmt: skip
PEFT_EDGES = {
    ("t1", "t2"): 17, ("t1", "t3"): 31, ("t1", "t4"): 29, ("t1", "t5"): 13, ("t1", "t6"): 7,
    ("t2", "t8"): 3, ("t2", "t9"): 30, ("t3", "t7"): 16, ("t4", "t8"): 11, ("t4", "t9"): 7,
    ("t5", "t9"): 57, ("t6", "t8"): 5, ("t7", "t10"): 9, ("t8", "t10"): 42, ("t9", "t10"): 7,
}  # fmt: skip
