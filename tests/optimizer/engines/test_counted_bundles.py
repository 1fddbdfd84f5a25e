"""What a search counts of bundles is what the simulator finds of the step that has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.bundling import seen_by_search
from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.layered_bundles import (
    layered_bundles,
    searched_bundles,
    with_shared_messages,
)
from placewire.optimizer.engines.layout import Cuts
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.scoring import score
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.kernels.simulation.labelled_bundles import Labels, labelled_bundles
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.names import SharingName
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.simulation.bundles import PlacedStep, joined, with_bundles
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, graph
from tests.optimizer.engines.test_layered_bundles import data_parallel
from tests.optimizer.peers.steps import captured

DEVICES = 3


def on_three(step: str, sharing: SharingName = "job", memory: int = 2 << 20) -> Problem:
    """Messages take much of a step, and 2 MiB of a device's memory are too few for some."""
    servers = cluster(DEVICES, (1e9, 1e9), memory=memory, types=["rtx4080s"] * DEVICES)
    message = {"message_seconds": 1e-4, "message_seconds_per_byte": 1e-10}
    return Problem(captured(step, 4), servers.model_copy(update=message), sharing=sharing)


def spread(problem: Problem, chance: np.random.Generator, part: float) -> IntArray:
    """Micro-batches on devices of their own, but for a random part of the operators."""
    micro = problem.graph.micro_batch
    device = np.where(micro >= 0, micro, np.arange(len(micro))) % DEVICES
    elsewhere = chance.random(len(device)) < part
    return np.where(elsewhere, chance.integers(DEVICES, size=len(device)), device)


@pytest.mark.parametrize("step", ["mlp", "transformer", "resnet50"])
@pytest.mark.parametrize("part", [0.0, 0.02, 0.5])
def test_the_cost_is_the_step_of_the_graph_with_bundles(step: str, part: float) -> None:
    problem = on_three(step)
    counting = with_shared_messages(problem)
    assert counting is not None
    known, costing, chance = layered_bundles(problem), Costing(counting), np.random.default_rng(0)
    assert known is not None and costing.bundles is known
    cuts = Cuts.equal(3)
    for _ in range(6):
        device = spread(problem, chance, part)
        priority = chance.random(len(device))
        plain = simulate(problem, device, priority)
        placed = PlacedStep(problem.graph, device, plain.order)
        bundles = sorted(joined(known.of(placed, cuts)), key=lambda one: one.turn)
        made = with_bundles(placed, bundles)
        urgent = np.concatenate([priority, np.full(len(bundles), np.inf)])
        found = simulate(replace(problem, graph=made.graph), made.device, urgent)
        cost = costing.cost(Solution(device, priority, None, cuts))
        memory = problem.cluster.memory_bytes
        over = np.maximum(found.peak_memory_bytes - memory, 0) / memory
        assert bundles and len(found.messages) < len(plain.messages)
        assert cost.excess == pytest.approx(over.sum())
        charge = 10 * cost.excess * costing.reference
        assert cost.cost - charge == pytest.approx(found.step_seconds, rel=1e-12)
        cuts = cuts.moved(chance)


def labels(problem: Problem, label: list[int]) -> Labels:
    """label: of each tensor, whoever reads it."""
    made = np.array(label, dtype=np.int64)
    n = problem.graph.operator_count
    mark, copied = np.random.default_rng(1).random(len(made)), np.zeros(2)
    return Labels(made, made, np.zeros(n, dtype=np.bool_), mark, copied)


def test_bundles_that_would_wait_for_each_other_are_none() -> None:
    """C needs B, which needs A: A and C cannot leave together, but P and Q can."""
    step = graph(
        dict.fromkeys("ABCDPQR", 1e-3),
        [
            ("A", ["B"], 100), ("B", ["C"], 100), ("C", ["D"], 100),
            ("P", ["R"], 100), ("Q", ["R"], 100),
        ],
    )  # fmt: skip
    problem = Problem(step, cluster(2))
    device = np.array([0 if i in "ACPQ" else 1 for i in step.ids], dtype=np.int64)
    of = {"A": 0, "C": 0, "P": 1, "Q": 1, "B": 2}
    label = [of[step.ids[i]] for i in step.tensor_producer.tolist()]
    found = labelled_bundles(tables_of(problem), labels(problem, label), device)
    names = [step.ids[i] for i in step.tensor_producer[found.tensor].tolist()]
    assert found.bundles == 1
    assert dict(zip(names, found.bundle.tolist(), strict=True)) == {
        "A": -1, "B": -1, "C": -1, "P": 0, "Q": 0,
    }  # fmt: skip


def test_what_goes_to_several_devices_is_one_bundle() -> None:
    step = graph(
        dict.fromkeys("PQXYZ", 1e-3),
        [("P", ["X", "Y"], 100), ("Q", ["X", "Y", "Z"], 100)],
    )
    problem = Problem(step, cluster(4))
    device = np.array([{"X": 1, "Y": 2, "Z": 3}.get(i, 0) for i in step.ids], dtype=np.int64)
    found = labelled_bundles(tables_of(problem), labels(problem, [0, 0]), device)
    to = {(int(b), int(d)) for b, d in zip(found.bundle, found.to, strict=True)}
    assert found.bundles == 1 and to == {(0, 1), (0, 2), (-1, 3)}


@pytest.mark.parametrize("sharing", ["strict", "guarantee"])
def test_where_rates_are_decided_a_search_counts_none(sharing: SharingName) -> None:
    problem = on_three("mlp", sharing)
    assert with_shared_messages(problem) is None and layered_bundles(problem) is not None
    costless = problem.cluster.model_copy(update={"message_seconds": 0.0})
    assert with_shared_messages(replace(on_three("mlp"), cluster=costless)) is None
    assert with_shared_messages(replace(on_three("mlp"), model="thesis", sharing="strict")) is None


def test_only_a_search_whose_placement_gets_bundles_counts_them() -> None:
    problem = on_three("mlp", memory=1 << 30)
    device = spread(problem, np.random.default_rng(0), 0.0)
    solution = Solution(device, np.zeros(len(device)), None)
    assert searched_bundles(problem) is None and Costing(problem).bundles is None
    single = simulate(problem, device, solution.priority)
    assert score(problem, solution).step_seconds == single.step_seconds
    counting = seen_by_search(problem)
    assert searched_bundles(counting) is not None
    assert score(counting, solution).step_seconds < single.step_seconds
    assert counting.graph is problem.graph and not problem.shares_messages


def test_a_search_that_counts_bundles_is_no_worse_than_its_start() -> None:
    problem, start = data_parallel(message_seconds=2e-3)
    settings = SolveSettings(moves=2_000, gap=0.0)
    found = place(problem, "auto", settings, starts=[start])
    assert any(message.bundled for message in found.messages)
    assert found.step_seconds <= Costing(seen_by_search(problem)).cost(start).cost * (1 + 1e-9)
