"""Tiny problems, and their least step by trying every placement and every order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from placewire.optimizer.bounds.relaxation import server_pair_rates
from placewire.optimizer.cluster import Link, Server
from placewire.optimizer.network.transfers import CUT_THRESHOLD_BYTES
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graphs
from tests.optimizer.problems import MODELS, SHARINGS


def placements(problem: Problem) -> Iterator[np.ndarray]:
    """Every one that keeps co-location groups together and can run."""
    key = problem.graph.colocation.tolist()
    groups = [
        [i for i, k in enumerate(key) if (k, i if k < 0 else k) == unit]
        for unit in sorted({(k, i if k < 0 else k) for i, k in enumerate(key)})
    ]
    for chosen in itertools.product(range(len(problem.cluster.devices)), repeat=len(groups)):
        device = np.empty(len(key), dtype=np.int64)
        for group, d in zip(groups, chosen, strict=True):
            device[group] = d
        if np.isfinite(problem.seconds[np.arange(len(key)), device]).all():
            yield device


def linear_orders(problem: Problem) -> list[list[int]]:
    """Every order of all operators that the graph allows."""
    source, target, _ = problem.graph.edges
    before: list[set[int]] = [set() for _ in problem.graph.ids]
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        before[b].add(a)
    found: list[list[int]] = []

    def extend(done: list[int]) -> None:
        if len(done) == len(before):
            found.append(done)
        for i in range(len(before)):
            if i not in done and before[i] <= set(done):
                extend([*done, i])

    extend([])
    return found


def contention_free_optimum(problem: Problem) -> float:
    """Every transfer at its pair's largest rate and none waiting for another; static memory under
    `thesis`, and its one order."""
    graph, cluster = problem.graph, problem.cluster
    thesis = problem.model == "thesis"
    orders = [graph.topological_order.tolist()] if thesis else linear_orders(problem)
    own = graph.weight_bytes + graph.activation_bytes + graph.workspace_bytes
    held = own if thesis else graph.weight_bytes
    best = np.inf
    for device in placements(problem):
        used = np.bincount(device, weights=held, minlength=len(cluster.devices))
        if (used > cluster.memory_bytes).any():
            continue
        inputs = [
            [(j, _transfer(problem, device, e, j, i)) for j, e in _inputs(problem, i)]
            for i in range(graph.operator_count)
        ]
        took = problem.seconds[np.arange(len(device)), device].tolist()
        for order in orders:
            best = min(best, _run(order, device.tolist(), took, inputs, len(cluster.devices)))
    return best


def _inputs(problem: Problem, i: int) -> list[tuple[int, int]]:
    made = problem.graph.tensor_producer
    return [(int(made[e]), e) for e in problem.graph.input_tensors(i).tolist()]


def _transfer(problem: Problem, device: np.ndarray, e: int, j: int, i: int) -> float:
    cluster, size = problem.cluster, int(problem.graph.tensor_bytes[e])
    a, b = int(device[j]), int(device[i])
    if a == b or size == 0:
        return 0.0
    if (link := cluster.link_of.get((a, b))) is not None:
        return link.setup_latency_seconds + size * 8 / link.rate_bits_per_second
    if problem.model == "msr":  # once into host memory and once out of it, but a CPU's own
        through = [end for end in (a, b) if cluster.devices[end].type != "cpu"]
        return len(through) * size * 8 / cluster.intra_server_bits_per_second
    s, t = cluster.server_of_device[[a, b]].tolist()
    rates = server_pair_rates(problem)[s, t]
    whole = size < CUT_THRESHOLD_BYTES and problem.model == "contended"
    rate = float(rates.max() if whole else rates.sum())
    rate = cluster.intra_server_bits_per_second if s == t else rate
    return cluster.setup_latency_seconds + size * 8 / rate if rate > 0 else np.inf


def _run(
    order: list[int],
    device: list[int],
    took: list[float],
    inputs: list[list[tuple[int, float]]],
    devices: int,
) -> float:
    free, finish = [0.0] * devices, [0.0] * len(order)
    for i in order:
        d = device[i]
        arrived = max((finish[j] + late for j, late in inputs[i]), default=0.0)
        free[d] = finish[i] = max(free[d], arrived) + took[i]
    return max(free)


def simulated_optimum(problem: Problem, rates: np.ndarray | None = None) -> float:
    """The least simulated step of every placement within the memories and every order."""
    best = np.inf
    orders = linear_orders(problem)
    memory = problem.cluster.memory_bytes
    for device in placements(problem):
        rows = {
            tuple(tuple(i for i in order if device[i] == d) for d in range(len(memory)))
            for order in orders
        }
        for order in rows:
            timeline = simulate(problem, device, order=order, rates=rates)
            if (timeline.peak_memory_bytes <= memory).all():
                best = min(best, timeline.step_seconds)
    return best


@st.composite
def tiny_problems(draw: st.DrawFn, largest: int = 6) -> Problem:
    """Two or three devices, unlike in every way that the bounds may not overlook."""
    made = draw(graphs(largest=largest))
    made = made.with_seconds(
        {"cpu": made.seconds[:, 0], "old": made.seconds[:, 0] * draw(st.sampled_from([1.0, 2.0]))}
    )
    servers = draw(st.integers(2, 3))
    rates = draw(st.sampled_from([(1.0,), (1.0, 2.0), (20.0, 10.0)]))
    base = cluster(
        servers,
        [BYTE_PER_MICROSECOND * rate for rate in rates],
        latency=draw(st.sampled_from([0.0, 0.02])),
        memory=draw(st.sampled_from([10**9, 120_000])),
        types=["cpu", *draw(st.lists(st.sampled_from(["cpu", "old"]), min_size=2, max_size=2))],
    )
    model = draw(st.sampled_from(MODELS))
    if model == "msr":  # all devices share the memory of one server
        host = Server(name="s1", devices=base.devices, nics=())
        base = base.model_copy(update={"servers": (host,)})
    if draw(st.booleans()):
        source, destination = draw(st.permutations(base.device_names))[:2]
        link = Link(
            source=source,
            destination=destination,
            setup_latency_seconds=0.01,
            rate_bits_per_second=draw(st.sampled_from([0.5, 50.0])) * BYTE_PER_MICROSECOND,
        )
        base = base.model_copy(update={"links": (link,)})
    return Problem(made, base, draw(st.sampled_from(SHARINGS)), model)
