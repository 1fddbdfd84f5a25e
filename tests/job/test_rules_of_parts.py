"""Is each rule of micro-batches, shards and replicas needed? Without any of them training differs.

Ranks live in one process; tests/job/test_exact.py takes rules of all placements out on real ranks,
tests/job/test_bundles.py those of bundles, and tests/job/test_rules_of_checkpoints.py those of
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

from placewire.optimizer.capture import micro_batches, shards, small_weights
from placewire.optimizer.capture import step as step_module
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.protocol import Tensors
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement
from tests.job.lazy_training import joined, on_one_device, train
from tests.placements import cluster_of, placement_of, random_devices

Mutation = Callable[[pytest.MonkeyPatch], None]

# It has batch norms, tied weights and strides of its own.
MODEL = "tests.models.hard:without_dropout"
ODD_SIZES = "tests.models.odd_sizes:training_step"
BATCH, PARTS, SHARDS = 8, 4, 3
CHOICE = OptimizerChoice("sgd", 0.1, {"momentum": 0.9})
ADAMW = OptimizerChoice("adamw", 0.1, {"weight_decay": 0.3})


@pytest.fixture(autouse=True)
def one_thread_and_small_shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 256)
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 0.0)
    yield
    torch.set_num_threads(before)


def captured(count: int = 1, model: str = MODEL, choice: OptimizerChoice = CHOICE) -> CapturedStep:
    return capture(model, BATCH, choice, 3, PARTS, shards=count)


def spread(step: CapturedStep) -> Placement:
    graph, cluster = step.operators, cluster_of(3)
    devices = random_devices(graph, cluster, 1)
    return placement_of(graph, cluster, devices, order_seed=1, bundle_seed=1)


def outcome(
    step: CapturedStep, placement: Placement
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses, and parameters and buffers by their names in PyTorch."""
    losses, values = train(step, placement)
    return losses, joined(step, values)


def equal(
    one: tuple[list[float], dict[str, torch.Tensor]],
    other: tuple[list[float], dict[str, torch.Tensor]],
) -> bool:
    assert one[1].keys() == other[1].keys()
    same = all(torch.equal(value, other[1][name]) for name, value in one[1].items())
    return same and one[0] == other[0]


def gradients_added_from_the_last(patch: pytest.MonkeyPatch) -> None:
    kept: dict[str, list[fx.Node]] = {}
    add = micro_batches._Unrolling._add_gradient

    def added(self: Any, m: int, name: str, gradient: fx.Node) -> None:
        kept.setdefault(name, []).append(gradient)
        if m == self.count - 1:
            for at, one in enumerate(reversed(kept[name])):
                add(self, at, name, one)

    patch.setattr(micro_batches._Unrolling, "_add_gradient", added)


def the_first_buffers_for_all(patch: pytest.MonkeyPatch) -> None:
    first: dict[fx.Node, fx.Node] = {}
    add = micro_batches._Unrolling._add_micro_batch

    def added(self: Any, m: int, here: dict[fx.Node, fx.Node]) -> None:
        for name in self.joint.new_buffers:
            node = self.joint.buffers[name]
            here[node] = first.setdefault(node, here[node])
        add(self, m, here)

    patch.setattr(micro_batches._Unrolling, "_add_micro_batch", added)


def every_so_many_samples(patch: pytest.MonkeyPatch) -> None:
    def split(batch: Tensors, count: int) -> Tensors:
        return tuple(x[m::count].clone() for m in range(count) for x in batch)

    patch.setattr(step_module, "split_batch", split)


@pytest.mark.parametrize(
    "mutation",
    [gradients_added_from_the_last, the_first_buffers_for_all, every_so_many_samples],
)
def test_without_a_rule_of_micro_batches(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    step = captured()
    right = outcome(step, on_one_device(step))
    assert equal(outcome(step, spread(step)), right)
    mutation(monkeypatch)
    other = captured()
    assert not equal(outcome(other, on_one_device(other)), right)


def joined_from_the_last(patch: pytest.MonkeyPatch) -> None:
    join = shards.join

    def turned(node: fx.Node, parts: list[fx.Node], before: fx.Node) -> None:
        join(node, parts[::-1], before)

    patch.setattr(shards, "join", turned)


def rows_of_other_shards(patch: pytest.MonkeyPatch) -> None:
    rows_of = shards._rows_of

    def turned(gradient: fx.Node, parts: Any) -> dict[str, fx.Node]:
        right = rows_of(gradient, parts)
        first, *_ = right.values()
        alike = [name for name, node in right.items() if _rows(node) == _rows(first)]
        return right | dict(zip(alike, (right[name] for name in reversed(alike)), strict=True))

    patch.setattr(shards, "_rows_of", turned)


def _rows(node: fx.Node) -> int:
    return int(node.meta["val"].shape[0])


@pytest.mark.parametrize("mutation", [joined_from_the_last, rows_of_other_shards])
def test_without_a_rule_of_shards(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    whole, right = captured(), captured(SHARDS)
    expected = outcome(whole, on_one_device(whole))
    assert equal(outcome(right, spread(right)), expected)
    mutation(monkeypatch)
    other = captured(SHARDS)
    assert not equal(outcome(other, spread(other)), expected)


def each_replica_for_its_own_micro_batches(patch: pytest.MonkeyPatch) -> None:
    add = micro_batches._Unrolling._add_gradient

    def added(self: Any, m: int, name: str, gradient: fx.Node) -> None:
        number = name.rpartition(" of replica ")[2]
        if not number.isdecimal() or m == 0 or m % SHARDS == int(number):
            add(self, m, name, gradient)

    patch.setattr(micro_batches._Unrolling, "_add_gradient", added)


def gradients_of_other_small_weights(patch: pytest.MonkeyPatch) -> None:
    join = small_weights._joined

    def turned(graph: fx.Graph, gradients: Any, weights: Any) -> fx.Node:
        return join(graph, gradients[::-1], weights[::-1])

    patch.setattr(small_weights, "_joined", turned)


def one_replica_trained_for_all(patch: pytest.MonkeyPatch) -> None:
    parameters = micro_batches._Unrolling._parameters

    def first(self: Any) -> dict[str, fx.Node]:
        for some in self.replicas.values():
            self.gradient_names = {
                gradient: [name for name in names if name not in [*some][1:]]
                for gradient, names in self.gradient_names.items()
            }
            for name in [*some][1:]:
                self.totals.pop(name, None)
        return parameters(self)

    patch.setattr(micro_batches._Unrolling, "_parameters", first)


@pytest.mark.parametrize(
    "mutation",
    [
        each_replica_for_its_own_micro_batches,
        gradients_of_other_small_weights,
        one_replica_trained_for_all,
    ],
)
def test_without_a_rule_of_small_weights(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 1 << 20)
    whole, right = captured(), captured(SHARDS)
    assert right.code.members
    expected = outcome(whole, on_one_device(whole))
    assert equal(outcome(right, spread(right)), expected)
    mutation(monkeypatch)
    other = captured(SHARDS)
    assert not equal(outcome(other, spread(other)), expected)


def shards_that_end_within_a_vector(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shards, "VECTOR_ELEMENTS", 1)


def small_weights_that_end_within_a_vector(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(small_weights, "VECTOR_ELEMENTS", 1)


@pytest.mark.parametrize(
    ("mutation", "least_shard_bytes"),
    [(shards_that_end_within_a_vector, 64), (small_weights_that_end_within_a_vector, 1 << 20)],
)
def test_without_the_rule_of_whole_vectors(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation, least_shard_bytes: int
) -> None:
    """A fused optimizer rounds elements beyond a tensor's last whole vector otherwise."""
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", least_shard_bytes)
    whole, right = (captured(count, ODD_SIZES, ADAMW) for count in (1, SHARDS))
    has_shards = mutation is shards_that_end_within_a_vector
    assert bool(right.code.shards) == has_shards and bool(right.code.members) != has_shards
    expected = outcome(whole, on_one_device(whole))
    assert equal(outcome(right, spread(right)), expected)
    mutation(monkeypatch)
    other = captured(SHARDS, ODD_SIZES, ADAMW)
    assert not equal(outcome(other, spread(other)), expected)
