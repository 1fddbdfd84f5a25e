"""Draws small problems of every kind with hypothesis.

They have unlike devices, several in a server, unequal NICs with and without neighbours' traffic,
links, pods, and every model, sharing and backend.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from placewire.optimizer.cluster import Cluster, Device, Link, Nic, Pod, Server, Uplink
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import Backend, Model, SharingName
from placewire.optimizer.problem import Problem
from tests.drawn_examples import examples
from tests.optimizer.cases import BYTE_PER_MICROSECOND, graphs

SHARINGS: tuple[SharingName, ...] = get_args(SharingName)
MODELS: tuple[Model, ...] = get_args(Model)
TYPES = ("cpu", "accelerator")
ROOMY = 10**9


@st.composite
def two_type_graphs(draw: st.DrawFn, largest: int = 9) -> OperatorGraph:
    """An accelerator is twice as fast as a CPU; about one operator in six cannot run on it."""
    made = draw(graphs(largest))
    able = [draw(st.integers(0, 5)) > 0 for _ in made.ids]
    slow = made.seconds[:, 0]
    return made.with_seconds({"cpu": slow, "accelerator": np.where(able, slow / 2, np.inf)})


def devices(draw: st.DrawFn, most: int, memory: st.SearchStrategy[int]) -> tuple[Device, ...]:
    count = draw(st.integers(1, most))
    kinds = st.sampled_from(("cpu", "cpu", "accelerator"))
    return tuple(Device(type=draw(kinds), memory_bytes=draw(memory)) for _ in range(count))


@st.composite
def mixed_clusters(
    draw: st.DrawFn,
    servers: int = 4,
    memory: st.SearchStrategy[int] | None = None,
    *,
    extremes: bool = False,
) -> Cluster:
    """All servers are on rail a, about half of them also on b; extremes: some have no NIC at all.
    The first device is a CPU with much memory, so that one device at least can run everything."""
    memory = st.just(ROOMY) if memory is None else memory
    rate = st.sampled_from([1.0, 1.0, 2.5])
    wanted = st.sampled_from([0.0, 0.0, 0.4, 5.0])
    handed_over = st.sampled_from([(0, 0), (700, 0), (20_000, 5_000), (100_000, 2_000)])
    made = []
    for k in range(draw(st.integers(2, servers))):
        rails = "ab" if draw(st.booleans()) else "a"
        if extremes and not draw(st.integers(0, 3)):
            rails = ""
        nics = []
        for rail in rails:
            speed = draw(rate) * BYTE_PER_MICROSECOND
            background, (window, low_water) = draw(wanted) * speed, draw(handed_over)
            nics.append(
                Nic(
                    rail=rail,
                    rate_bits_per_second=speed,
                    background_bits_per_second=background,
                    window_bytes=window,
                    low_water_bytes=low_water,
                )
            )
        held = devices(draw, 2, memory)
        if k == 0:
            held = (Device(type="cpu", memory_bytes=ROOMY), *held[1:])
        made.append(Server(name=f"s{k}", devices=held, nics=tuple(nics)))
    bare = Cluster(
        servers=tuple(made),
        setup_latency_seconds=draw(st.sampled_from([0.0, 0.002])),
        message_seconds=draw(st.sampled_from([0.0, 0.003])),
        message_seconds_per_byte=draw(st.sampled_from([0.0, 1e-6])),
        intra_server_bits_per_second=1e8,
    )
    more = {"links": draw(links_between(bare, extremes)), "pods": draw(pods_of(bare, extremes))}
    return bare.model_copy(update=more)


@st.composite
def pods_of(draw: st.DrawFn, cluster: Cluster, extremes: bool) -> tuple[Pod, ...]:
    """None in two of three clusters; else two pods, whose uplinks are narrower or wider than NICs.
    extremes: in some a rail has no uplink."""
    if len(cluster.servers) < 2 or draw(st.integers(0, 2)):
        return ()
    names = [server.name for server in cluster.servers]
    first = draw(st.integers(1, len(names) - 1))
    speed = st.sampled_from([0.3, 0.3, 1.0, 3.0, *([0.0] if extremes else [])])
    made = []
    for name, servers in (("p0", names[:first]), ("p1", names[first:])):
        speeds = {rail: draw(speed) * BYTE_PER_MICROSECOND for rail in cluster.rails}
        uplinks = [Uplink(rail=r, rate_bits_per_second=s) for r, s in speeds.items() if s > 0]
        made.append(Pod(name=name, servers=tuple(servers), uplinks=tuple(uplinks)))
    return tuple(made)


@st.composite
def links_between(draw: st.DrawFn, cluster: Cluster, extremes: bool) -> tuple[Link, ...]:
    """extremes: some join all devices, or are slower or much faster than what they replace."""
    pairs = [(a, b) for a in cluster.device_names for b in cluster.device_names if a != b]
    if not pairs or draw(st.integers(0, 2)):
        return ()
    few = st.lists(st.sampled_from(pairs), max_size=3, unique=True)
    joined = draw(st.one_of(few, st.just(pairs)) if extremes else few)
    speed = st.sampled_from([0.5, 1.0, 50.0]) if extremes else st.just(1.0)
    return tuple(
        Link(
            source=a,
            destination=b,
            setup_latency_seconds=draw(st.sampled_from([0.0, 0.01])),
            rate_bits_per_second=draw(speed) * BYTE_PER_MICROSECOND,
        )
        for a, b in joined
    )


@st.composite
def one_server(
    draw: st.DrawFn, memory: st.SearchStrategy[int] | None = None, *, extremes: bool = False
) -> Cluster:
    held = devices(draw, 3, st.just(ROOMY) if memory is None else memory)
    held = (Device(type="cpu", memory_bytes=ROOMY), *held)
    bare = Cluster(
        servers=(Server(name="s0", devices=held, nics=()),),
        setup_latency_seconds=draw(st.sampled_from([0.0, 0.002])),
        message_seconds=draw(st.sampled_from([0.0, 0.003])),
        message_seconds_per_byte=draw(st.sampled_from([0.0, 1e-6])),
        intra_server_bits_per_second=BYTE_PER_MICROSECOND,
    )
    return bare.model_copy(update={"links": draw(links_between(bare, extremes))})


@st.composite
def problems(
    draw: st.DrawFn,
    largest: int = 9,
    servers: int = 4,
    memory: st.SearchStrategy[int] | None = None,
    models: tuple[Model, ...] = ("contended", "contended", "contended", "thesis", "msr"),
    *,
    extremes: bool = False,
) -> Problem:
    """extremes: in some a server carries nothing, because it has no NIC or a neighbour takes all of
    it, and in some links are much faster than what they replace."""
    model = draw(st.sampled_from(models))
    one = one_server(memory, extremes=extremes)
    cluster = draw(one if model == "msr" else mixed_clusters(servers, memory, extremes=extremes))
    return Problem(
        draw(two_type_graphs(largest)),
        cluster,
        draw(st.sampled_from(SHARINGS)),
        model,
        draw(st.sampled_from(get_args(Backend))),
        draw(st.sampled_from([0.0, 0.8] if extremes else [0.5, 0.8])),
    )


@st.composite
def able_devices(draw: st.DrawFn, problem: Problem) -> np.ndarray:
    """For each operator a device that can run it, the same for all of a co-location group."""
    key = problem.graph.colocation
    chosen = np.empty(problem.graph.operator_count, dtype=np.int64)
    home: dict[int, int] = {}
    for i, k in enumerate(key.tolist()):
        group = key == k if k >= 0 else np.arange(len(key)) == i
        able = np.flatnonzero(np.isfinite(problem.seconds[group]).all(axis=0)).tolist()
        device = draw(st.sampled_from(able))
        chosen[i] = home.setdefault(k, device) if k >= 0 else device
    return chosen


def drawn(number, *, always=False):
    """always: also in `make test`, because something must be seen in some of the draws.

    No database: a failure is reproduced by its printed example, and runs stay alike.
    """
    return settings(
        max_examples=number if always else examples(number),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
