"""Another bucket's step is placed beside the first one's placement."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.engines.beside import pinned_devices, place_beside
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement, PlacementError
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings

SETTINGS = SolveSettings(moves=1_500, gap=0.0, seed=1)
FirstOf = Callable[[SharingName], Placement]


def cluster(memory_bytes: int = 1 << 30) -> Cluster:
    nics = tuple(Nic(rail=rail, rate_bits_per_second=2e9) for rail in "ab")
    servers = tuple(
        Server(name=name, devices=(Device(type="cpu", memory_bytes=memory_bytes),) * 2, nics=nics)
        for name in ("s1", "s2", "s3")
    )
    return Cluster(servers=servers, setup_latency_seconds=2e-5, intra_server_bits_per_second=1e10)


@pytest.fixture(scope="module")
def captured() -> CapturedStep:
    return capture("tests.models.lengths:training_step", 4, OptimizerChoice(), 3, accumulate=2)


def timed(graph: OperatorGraph) -> OperatorGraph:
    """Long enough that it is worth sending what they make."""
    seconds = 1e-4 + graph.activation_bytes * 1e-7
    seconds[[kind in ("parameter", "buffer", "input") for kind in graph.types]] = 0.0
    return graph.with_seconds({"cpu": np.asarray(seconds)})


@pytest.fixture(scope="module")
def first_of(captured: CapturedStep) -> FirstOf:
    """The placement of the first bucket, under each sharing searched once."""
    graph = timed(captured.operators)
    return functools.cache(
        lambda sharing: place(Problem(graph, cluster(), sharing), "auto", SETTINGS)
    )


@pytest.mark.parametrize(
    "sharing",
    [
        "strict",
        "job",
        *(pytest.param(s, marks=pytest.mark.thorough) for s in ("guarantee", "even", "unshaped")),
    ],
)
def test_parameters_and_rates_stay_and_all_else_is_searched(
    captured: CapturedStep, first_of: FirstOf, sharing: SharingName
) -> None:
    first = first_of(sharing)
    assert len(first.devices_used) > 2
    graph = timed(captured.buckets["5"].operators)
    found = place_beside(graph, first, SETTINGS)
    assert check(graph, found) == ()
    assert found.cluster == first.cluster and found.sharing == sharing
    assert found.rates_bits_per_second == first.rates_bits_per_second
    held = set(captured.values)
    written = captured.buckets["5"].code.writers
    for identifier in held | written.keys():
        assert found.operators[identifier] == first.operators[identifier]
    assert set(found.devices_used) <= set(first.devices_used)
    assert found.step_seconds < first.step_seconds
    assert found == place_beside(graph, first, SETTINGS).model_copy(
        update={"wall_seconds": found.wall_seconds}
    )


def test_beside_one_device_all_is_on_that_device(captured: CapturedStep) -> None:
    problem = Problem(timed(captured.operators), cluster(), "job")
    first = place(problem, "single", SETTINGS)
    found = place_beside(timed(captured.buckets["8"].operators), first, SETTINGS)
    assert found.devices_used == first.devices_used and not found.messages
    assert found.single_device_seconds == pytest.approx(found.step_seconds)


def test_operators_of_other_ids_are_placed_too(captured: CapturedStep, first_of: FirstOf) -> None:
    """Shapes may change which operators a step has."""
    first, graph = first_of("job"), timed(captured.buckets["5"].operators)
    computed = [i for i in first.operators if i in graph.ids and i not in captured.values]
    fewer = {i: d for i, d in first.operators.items() if i not in computed[::2]}
    order = {d: tuple(i for i in some if i in fewer) for d, some in first.order.items()}
    other = first.model_copy(update={"operators": fewer, "order": order})
    assert check(graph, place_beside(graph, other, SETTINGS)) == ()


def test_a_bucket_that_does_not_fit_is_refused(captured: CapturedStep, first_of: FirstOf) -> None:
    first = first_of("job")
    graph = captured.buckets["5"].operators
    held = max(
        sum(int(graph.weight_bytes[graph.index_of[i]]) for i in captured.values
            if first.operators[i] == device)
        for device in first.devices_used
    )  # fmt: skip
    small = first.model_copy(update={"cluster": cluster(held)})
    with pytest.raises(InfeasibleError):
        place_beside(timed(graph), small, SETTINGS)


def test_a_placement_of_another_model_is_refused(first_of: FirstOf) -> None:
    first = first_of("job")
    other = capture("tests.models.validated:training_step", 4, OptimizerChoice(), 3)
    with pytest.raises(PlacementError, match="the first bucket's placement has no parameter "):
        pinned_devices(other.operators, first)
