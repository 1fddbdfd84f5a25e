"""Features of a step on several ranks: are results bit-equal wherever they are placed?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.profile.straight import StraightStep
from tests.job.lazy_training import on_one_device, train, with_own_values
from tests.job.node_by_node import train_node_by_node
from tests.placements import cluster_of, placement_of, random_devices

ALL = OptimizerChoice(
    "adamw",
    1e-2,
    clip_norm=0.1,
    schedule=LearningRateSchedule("cosine", warmup_steps=1, total_steps=5),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def hard() -> CapturedStep:
    """Dropout, batch norm, tied weights; two micro-batches under autocast, clipped."""
    return capture(
        "tests.models.hard:training_step",
        6,
        ALL,
        3,
        accumulate=2,
        autocast="bf16",
    )


@pytest.fixture(scope="module")
def conditional() -> CapturedStep:
    choice = OptimizerChoice("sgd", 0.1, {"momentum": 0.9}, clip_norm=0.05)
    return capture(
        "tests.models.features:conditional_in_conditional",
        4,
        choice,
        3,
        accumulate=2,
    )


@pytest.mark.parametrize("name", ["hard", "conditional"])
@pytest.mark.parametrize("seed", range(4))
def test_all_features_train_the_same_on_any_ranks(
    name: str, seed: int, request: pytest.FixtureRequest
) -> None:
    captured: CapturedStep = request.getfixturevalue(name)
    graph = captured.operators
    expected_losses, expected = train(captured, on_one_device(captured))
    cluster = cluster_of(2 + seed % 3)
    devices = random_devices(graph, cluster, seed)
    placement = placement_of(graph, cluster, devices, order_seed=seed if seed % 2 else None)
    coefficients = [m for m in placement.messages if m.producer == "clip_coefficient"]
    assert coefficients and all(message.bytes == 4 for message in coefficients)
    losses, values = train(captured, placement)
    assert losses == expected_losses and len(set(losses)) == len(losses)
    assert all(torch.equal(values[k], v) for k, v in expected.items())


@pytest.mark.parametrize("name", ["hard", "conditional"])
def test_one_rank_trains_as_the_profile_and_as_node_by_node(
    name: str, request: pytest.FixtureRequest
) -> None:
    captured: CapturedStep = request.getfixturevalue(name)
    own, by_hand = with_own_values(captured), with_own_values(captured)
    alone = StraightStep(own)
    for step in range(4):
        alone.run(alone.load(step))
    train_node_by_node(by_hand, 4)
    _, values = train(captured, on_one_device(captured))
    assert all(torch.equal(values[k], v) for k, v in own.values.items())
    assert all(torch.equal(values[k], v) for k, v in by_hand.values.items())
