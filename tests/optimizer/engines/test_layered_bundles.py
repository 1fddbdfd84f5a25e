"""Bundles along the model: weights with weights, gradients with gradients, of a range of layers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from placewire.optimizer.engines.bundling import best_bundled, bundled, unbundled
from placewire.optimizer.engines.common import common_operators
from placewire.optimizer.engines.layered_bundles import layered_bundles
from placewire.optimizer.engines.layout import Cuts, Layout, Urgency
from placewire.optimizer.engines.pieces import Pieces
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.bundles import Bundle
from placewire.optimizer.simulation.simulate import recorded_priority
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import chain

DEVICES, LAYERS = 3, 12
NEVER = float("inf")


def data_parallel(
    parts: int = DEVICES, message_seconds: float = 1e-4, *, masks: bool = False
) -> tuple[Problem, Solution]:
    """Micro-batch m on device m; every weight, with its sums and its update, on one device."""
    step = chain(parts, layers=LAYERS, masks=masks)
    on = cluster(DEVICES, (1e9,)).model_copy(update={"message_seconds": message_seconds})
    problem = Problem(step, on, sharing="job")
    device = [
        micro if micro >= 0 else layer_of(name) % DEVICES
        for name, micro in zip(step.ids, step.micro_batch.tolist(), strict=True)
    ]
    return problem, Solution(np.array(device), recorded_priority(problem), None)


def layer_of(name: str) -> int:
    """Of `w3`, `update3` and `sum1.3`; 0 of the loss."""
    found = re.fullmatch(r"(?:w|update|sum\d+\.)(\d+)", name)
    return int(found[1]) if found else 0


def layered(problem: Problem, solution: Solution, ranges: int) -> list[Bundle]:
    known = layered_bundles(problem)
    if known is None:
        return []
    return list(known.of(unbundled(problem, solution).step, Cuts.equal(ranges)))


def producers(graph: OperatorGraph, bundle: Bundle) -> list[str]:
    return [graph.ids[int(graph.tensor_producer[e])] for e in bundle.tensors]


@pytest.mark.parametrize("ranges", [1, 2, 3])
def test_neighbouring_layers_share_a_message(ranges: int) -> None:
    problem, solution = data_parallel()
    graph, found = problem.graph, layered(problem, solution, ranges)
    seen: set[tuple[int, int]] = set()
    for bundle in found:
        # A micro-batch's loss serves all of them, as its gradients do.
        names = [name for name in producers(graph, bundle) if not name.startswith("l_m")]
        assert {name[0] for name in names} in ({"w"}, {"g"}), "activations are waited for"
        layers = [int(re.sub(r"_m\d+$", "", name)[1:]) for name in names]
        # An owner has every third layer.
        assert max(layers) - min(layers) <= LAYERS / ranges
        assert all(int(solution.device[graph.index_of[name]]) == bundle.source for name in names)
        brought = {(e, d) for d in bundle.destinations for e in bundle.tensors}
        assert not brought & seen, "each tensor comes once"
        seen |= brought
    # To each of the others, the weights of a range, and its gradients.
    assert len(found) <= DEVICES * (DEVICES - 1) * 2 * ranges
    if ranges == 1:
        assert len(found) == DEVICES * (DEVICES - 1) * 2


@pytest.mark.parametrize("ranges", [1, 3])
def test_what_is_made_of_constants_shares_messages(ranges: int) -> None:
    problem, solution = data_parallel(masks=True)
    found = layered(problem, solution, ranges)
    made = [producers(problem.graph, bundle) for bundle in found]
    masks = [names for names in made if names[0][0] == "k"]
    # All others wait for them, so that no weight travels with them.
    assert all(name[0] == "k" for names in masks for name in names)
    assert [len(names) for names in masks] == [LAYERS / ranges] * ranges * (DEVICES - 1)
    # Beside them stands what there was without.
    assert len(made) - len(masks) == len(layered(*data_parallel(), ranges))


def test_what_is_made_of_constants_runs_first() -> None:
    problem, _ = data_parallel(masks=True)
    graph, pieces = problem.graph, Pieces(problem)
    home = np.tile(np.arange(DEVICES), (pieces.count, 1))
    for urgency in (Urgency(), Urgency(gradients=True, shared_late=True)):
        layout = Layout(home, np.arange(DEVICES), 0.5, Cuts.equal(2), urgency)
        priority = pieces.solution(layout).priority
        common = common_operators(graph)
        assert {graph.ids[i][0] for i in np.flatnonzero(common).tolist()} == {"w", "c", "k"}
        assert priority[common].min() > priority[~common].max()


def test_a_step_of_one_micro_batch_has_none() -> None:
    problem, solution = data_parallel(parts=1)
    assert layered(problem, solution, 2) == []


def test_they_are_taken_where_messages_take_long() -> None:
    problem, solution = data_parallel(message_seconds=2e-3)
    plain, made = unbundled(problem, solution), bundled(problem, solution)
    assert made.timeline.step_seconds < 0.9 * plain.timeline.step_seconds
    assert any(len(bundle.tensors) == LAYERS / DEVICES for bundle in made.bundles)


def test_ends_that_move_make_no_step_longer_and_some_shorter() -> None:
    problem, spread = data_parallel(message_seconds=2e-3)
    plain = bundled(problem, spread).timeline.step_seconds
    found = best_bundled(problem, spread, [], NEVER)
    assert found.timeline.step_seconds < plain
    again = best_bundled(problem, spread, [], NEVER)
    assert again.bundles == found.bundles, "the same seed finds the same"
    assert best_bundled(problem, spread, [], 0.0).timeline.step_seconds == plain


def test_ends_rise_and_stay_within_the_model() -> None:
    chance, cuts, seen = np.random.default_rng(1), Cuts.equal(3), set[tuple[int, int]]()
    for _ in range(300):
        cuts = cuts.moved(chance)
        seen.add((len(cuts.weights), len(cuts.gradients)))
        for ends in (cuts.weights, cuts.gradients):
            assert list(ends) == sorted(ends) and all(0.0 <= end <= 1.0 for end in ends)
    assert len(seen) > 5


def test_a_solution_that_is_better_with_bundles_is_taken() -> None:
    """All on one device sends nothing; over three it is shorter, once tensors are joined."""
    problem, spread = data_parallel()
    alone = Solution(np.zeros_like(spread.device), spread.priority, None)
    best = best_bundled(problem, alone, [spread], NEVER)
    assert best.solution.device is spread.device and best.bundles
    assert best.solution.cuts is not None, "where a further search may begin"
    assert best_bundled(problem, spread, [alone], NEVER).solution.device is spread.device
    late = best_bundled(problem, alone, [spread], 0.0)
    assert late.solution is alone, "there was no time for another one"


def test_a_solution_that_exceeds_a_memory_is_not_taken() -> None:
    problem, spread = data_parallel()
    graph = problem.graph
    alone = Solution(np.zeros_like(spread.device), spread.priority, None)
    needed = unbundled(problem, spread).timeline.peak_memory_bytes
    small = problem.cluster.model_copy(
        update={
            "servers": tuple(
                server.model_copy(
                    update={
                        "devices": tuple(
                            device.model_copy(update={"memory_bytes": int(needed[k]) - 1})
                            for device in server.devices
                        )
                    }
                )
                if k
                else server
                for k, server in enumerate(problem.cluster.servers)
            )
        }
    )
    tight = Problem(graph, small, sharing="job")
    assert best_bundled(tight, alone, [spread], NEVER).solution is alone
