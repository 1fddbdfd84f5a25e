"""What holds for the peers of every step and cluster, drawn at random: other code computes the same
times for them, and no bound is above our placement, which is no worse than any of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster, Nic
from placewire.optimizer.commands.placing import place_best
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.compare import peers_of
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.cases import cluster
from tests.optimizer.peers.as_placements import overlapping, placement_of, recorded
from tests.optimizer.peers.steps import MODELS, captured, chain, gpus
from tests.optimizer.problems import drawn

ROUNDING = 1 + 1e-6
PEERS = {"ddp", "fsdp", "gpipe", "1f1b", "interleaved-1f1b"}


@st.composite
def clusters(draw: st.DrawFn, devices: int = 2) -> Cluster:
    """Two to four servers of up to so many devices, of unlike speed and with unequal NICs now and
    then; all are on rail a. The network is slow, or as good as none."""
    servers, rails = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    count = draw(st.integers(1, devices)) if servers == 2 else 1
    types = draw(
        st.lists(st.sampled_from(["cpu", "cpu", "fast"]), min_size=servers, max_size=servers)
    )
    rate = draw(st.sampled_from([4e6, 4e7, 4e8, 1e11]))
    made = cluster(
        servers, (rate,) * rails, devices=count, types=types, memory=10**9,
        latency=draw(st.sampled_from([0.0, 1e-4])), intra=draw(st.sampled_from([1e8, 1e11])),
    )  # fmt: skip
    unequal = []
    for server in made.servers:
        slower = [draw(st.sampled_from([1.0, 1.0, 0.25])) for _ in server.nics]
        fewer = server.nics[: draw(st.integers(1, rails))]
        nics = tuple(
            Nic(rail=nic.rail, rate_bits_per_second=nic.rate_bits_per_second * part)
            for nic, part in zip(fewer, slower, strict=False)
        )
        unequal.append(server.model_copy(update={"nics": nics}))
    return made.model_copy(update={"servers": tuple(unequal)})


@st.composite
def variants(draw: st.DrawFn, where: Cluster, *, shards: bool = False) -> list[OperatorGraph]:
    """Of a chain of two to five layers. shards: some have them."""
    layers = draw(st.integers(2, 5))
    blocks = draw(st.sampled_from([None, layers - 1]))
    again = draw(st.integers(0, 4)) == 0
    few = draw(st.integers(2, 3)) if shards else None
    return variants_of(len(where.devices), layers, few, blocks=blocks, again=again)


def variants_of(
    devices: int, layers: int, few: int | None, *, blocks: int | None = None, again: bool = False
) -> list[OperatorGraph]:
    """A chain in one micro-batch, in as many as there are devices, and in twice as many; together
    they take as long. few: again in micro-batches, with shards for all devices, or for so many."""
    cuts = [(parts, 1) for parts in (1, devices, 2 * devices)]
    if few is not None:
        cuts += [(devices, devices), (2 * devices, few)]
    return [
        shared_work(chain(parts, layers, blocks=blocks, again=again, shards=count), parts)
        for parts, count in cuts
    ]


def shared_work(graph: OperatorGraph, parts: int) -> OperatorGraph:
    """The step whose micro-batches take together as long as the chain's one does."""
    part = np.where(graph.micro_batch >= 0, 1.0 / parts, 1.0)
    types = enumerate(graph.device_types)
    return graph.with_seconds({name: graph.seconds[:, k] * part for k, name in types})


@pytest.mark.hypothesis
def test_every_peer_passes_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its times, arrivals and memory are computed again from devices, orders and messages alone."""
    simulated = recorded(monkeypatch)

    def checked(graphs: list[OperatorGraph], where: Cluster) -> set[str]:
        simulated.steps.clear()
        peers_of(graphs[:2], where, lambda said: None)
        of_name = {one[0].name: one for one in simulated.steps}
        for step, problem, timeline in of_name.values():
            assert np.isfinite(step.step_seconds)
            assert check(problem.graph, placement_of(problem, timeline, step.step_seconds)) == ()
            assert overlapping(problem, timeline) == []
        return set(of_name)

    @drawn(8)
    @given(st.data())
    def passes(data: st.DataObject) -> None:
        where = data.draw(clusters())
        checked(data.draw(variants(where)), where)

    assert checked(variants_of(2, 2, None), cluster(2)) == PEERS
    passes()


@pytest.mark.parametrize(
    "model",
    [
        "alexnet",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in MODELS if name != "alexnet"),
    ],
)
def test_the_peers_of_captured_models_pass_the_check(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    simulated = recorded(monkeypatch)
    found = peers_of([captured(model, 4)], gpus(2, devices=2, rails=2), lambda said: None)
    assert {step.name for step in found} == PEERS
    for step, problem, timeline in simulated.steps:
        if step in found:
            placement = placement_of(problem, timeline, step.step_seconds)
            assert check(problem.graph, placement) == ()


def test_what_a_peer_did_not_do_does_not_pass_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is said to be shorter, a message that is not sent, a rate that no NIC has."""
    simulated = recorded(monkeypatch)
    peers_of([chain(2)], cluster(2), lambda said: None)
    for step, problem, timeline in simulated.steps:
        right = placement_of(problem, timeline, step.step_seconds)
        shorter = placement_of(problem, timeline, step.step_seconds * 0.999)
        lacking = right.model_copy(update={"messages": right.messages[1:]})
        servers = [
            server.model_copy(
                update={
                    "nics": tuple(
                        nic.model_copy(
                            update={"rate_bits_per_second": nic.rate_bits_per_second * 0.9}
                        )
                        for nic in server.nics
                    )
                }
            )
            for server in right.cluster.servers
        ]
        slower = right.cluster.model_copy(update={"servers": tuple(servers)})
        for wrong in (shorter, lacking, right.model_copy(update={"cluster": slower})):
            assert check(problem.graph, wrong), step.name


@pytest.mark.slow
@drawn(12)
@given(st.data())
def test_bound_ours_and_every_peer_are_in_this_order(data: st.DataObject) -> None:
    where = data.draw(clusters())
    in_order(data.draw(variants(where, shards=True)), where)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [2, 4])
def test_they_are_in_this_order_beside_all_peers_with_shards_and_without(servers: int) -> None:
    """The network is as good as none. Two devices share the updates of two layers as they are; of
    four, two would wait. Bounds prove that each other variant is longer."""
    graphs, where = variants_of(servers, 2, few=2), cluster(servers, (1e11,))
    chosen, placement, names = in_order(graphs, where)
    assert graphs[chosen].notes["shards"] == (4 if servers == 4 else 1)
    others = [v for v in placement.variants if v.structure_hash != placement.structure_hash]
    assert len(others) == 4 and min(v.bound_seconds for v in others) > placement.step_seconds
    assert names == PEERS


def in_order(graphs: list[OperatorGraph], where: Cluster) -> tuple[int, Placement, set[str]]:
    """(the variant that `solve` and `advise` choose, our placement of it, the peers)"""
    names = [f"{one.notes['accumulate']} parts, {one.notes['shards']} shards" for one in graphs]
    problems = [Problem(graph, where, "job") for graph in graphs]
    settings = SolveSettings(gap=0.0, moves=20_000, seed=1)
    chosen, placement, _ = place_best(names, problems, "auto", "job", settings)
    ours, bounds = placement.step_seconds, [one.bound_seconds for one in placement.variants]
    assert len(bounds) == len(graphs) and placement.bound_seconds <= ours * ROUNDING
    assert min(bounds) <= ours * ROUNDING
    peers = peers_of(graphs, where, lambda said: None)
    for peer in peers:
        assert ours <= peer.step_seconds * ROUNDING, (peer, ours)
    return chosen, placement, {peer.name for peer in peers}
