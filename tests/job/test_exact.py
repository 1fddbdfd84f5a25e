"""Do random placements train as one rank does, and one rank as PyTorch? Is each rule needed?

A sample of what `python -m benchmarks.job --items 1` runs. Equal: losses, parameters, buffers and
optimizer state after all steps, by torch.equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.job.eager import differences_from_eager
from benchmarks.job.exact import MODELS, OPTIMIZERS
from benchmarks.job.random_placements import on_one_device, random_placement
from benchmarks.job.rank_pool import RankPool, Trained
from placewire.job.contract.specification import OptimizerSpec
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from tests.job import mutations

pytestmark = pytest.mark.slow

STEPS = 20
SGD, ADAMW, CLIPPED = OPTIMIZERS.values()
# Tied weights, batch norm on transposed values, dropout, views, constants; kernels that choose
# other strides than were captured.
HARD = "tests.models.hard:training_step"
WITHOUT_DROPOUT = "tests.models.hard:without_dropout"


@pytest.fixture(scope="module")
def hard() -> Iterator[RankPool]:
    with RankPool(HARD, 4, ADAMW) as pool:
        yield pool


@pytest.fixture(scope="module")
def one_rank(hard: RankPool) -> Trained:
    trained = hard.run(on_one_device(hard.graph), STEPS)
    assert not trained.failures
    assert trained.losses[-1] < trained.losses[0] - 0.5
    updates = [name for name in trained.tensors if name.endswith(".exp_avg_sq")]
    frozen, buffers = 1, 3
    assert len(updates) == 7 and len(trained.tensors) == 7 * 4 + frozen + buffers
    return trained


@pytest.mark.parametrize(("ranks", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_any_placement_trains_as_one_rank(
    hard: RankPool, one_rank: Trained, ranks: int, seed: int
) -> None:
    rails = ("a", "b")
    placement = random_placement(hard.graph, ranks, rails, seed)
    assert len(placement.devices_used) == ranks
    assert any(len(message.rails) > 1 for message in placement.messages)
    assert one_rank.differences(hard.run(placement, STEPS, rails)) == ()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "optimizer", "ranks"), [("vgg16", SGD, 3), ("mixture", ADAMW, 2)])
def test_any_placement_of_the_examples_trains_as_one_rank(
    name: str, optimizer: OptimizerSpec, ranks: int
) -> None:
    with RankPool(MODELS[name], 4, optimizer) as pool:
        one = pool.run(on_one_device(pool.graph), STEPS)
        placement = random_placement(pool.graph, ranks, ("a", "b"), seed=5)
        assert one.differences(pool.run(placement, STEPS, ("a", "b"))) == ()


def test_one_rank_trains_as_pytorch() -> None:
    with RankPool(WITHOUT_DROPOUT, 4, CLIPPED) as pool:
        one = pool.run(on_one_device(pool.graph), STEPS)
        assert from_pytorch(pool, one, CLIPPED, seed=0) == ()
        assert "loss" in from_pytorch(pool, one, CLIPPED, seed=1)


def from_pytorch(
    pool: RankPool, one: Trained, optimizer: OptimizerSpec, seed: int
) -> tuple[str, ...]:
    return differences_from_eager(one, pool.names, WITHOUT_DROPOUT, 4, optimizer, seed)


@pytest.mark.parametrize(
    "mutation",
    [
        mutations.strides_as_kernels_choose,
        mutations.strides_lost_on_the_way,
        mutations.strides_sent_as_they_are,
    ],
)
def test_without_captured_strides_a_placement_trains_otherwise(
    hard: RankPool, mutation: Callable[[], None]
) -> None:
    one = hard.run(on_one_device(hard.graph), STEPS, mutation=mutation)
    mutated = hard.run(random_placement(hard.graph, 2, ("a",), 12), STEPS, mutation=mutation)
    assert not one.failures and not mutated.failures
    assert "loss" in one.differences(mutated)


def test_messages_told_apart_by_order_alone_are_mistaken(hard: RankPool, one_rank: Trained) -> None:
    """Either values are exchanged, or gloo sees a size that does not fit."""
    mutation = mutations.messages_told_apart_by_order_alone
    placement = random_placement(hard.graph, 2, ("a",), 12)
    assert one_rank.differences(hard.run(placement, STEPS)) == ()
    assert one_rank.differences(hard.run(placement, STEPS, mutation=mutation, limit_seconds=20))


def test_without_merged_ties_one_of_two_names_is_left_untrained() -> None:
    with RankPool(WITHOUT_DROPOUT, 4, SGD, mutation=mutations.ties_forgotten) as pool:
        one = pool.run(on_one_device(pool.graph), STEPS)
        assert not one.failures and len(one.losses) == STEPS
        assert "model.words.weight" in from_pytorch(pool, one, SGD, seed=0)


def test_a_parameter_and_its_update_apart_train_otherwise(
    hard: RankPool, one_rank: Trained
) -> None:
    parameter, update = "parameter_model_mix_weight", "update_model_mix_weight"
    colocation = hard.graph.colocation.copy()
    colocation[hard.graph.ids.index(update)] = -1
    placements = (placed_by_rules(hard.graph, colocation, seed) for seed in range(0, 20, 2))
    apart = next(p for p in placements if p.operators[parameter] != p.operators[update])
    assert "loss" in one_rank.differences(hard.run(apart, STEPS))


def test_a_tuple_and_its_items_apart_are_refused(hard: RankPool) -> None:
    nothing = np.full_like(hard.graph.colocation, -1)
    trained = hard.run(placed_by_rules(hard.graph, nothing, 0), STEPS)
    assert any("which no message brings" in failure for failure in trained.failures)


def placed_by_rules(
    graph: OperatorGraph, colocation: npt.NDArray[np.int64], seed: int
) -> Placement:
    """Returns a placement by these rules instead of the graph's own co-location."""
    placement = random_placement(replace(graph, colocation=colocation), 2, ("a",), seed)
    return placement.model_copy(update={"structure_hash": graph.structure_hash})
