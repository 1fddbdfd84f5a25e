"""Small weights of a step with shards: which lie together, who reads which replica, and updates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import fx, nn

from placewire.optimizer.capture import small_weights
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.nodes import MICRO_BATCH
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.state import StatePart
from placewire.optimizer.capture.step import capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.profile.straight import StraightStep

aten = torch.ops.aten
ADAMW = OptimizerChoice()
SMALL = "placewire.examples.models.transformer:training_step_small"


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(64))
        self.matrix = nn.Parameter(torch.randn(64, 64))
        self.odd = nn.Parameter(torch.randn(65))
        self.large = nn.Parameter(torch.randn(64, 512))
        self.turned = nn.Parameter(torch.randn(64, 128).t())
        self.frozen = nn.Parameter(torch.randn(64), requires_grad=False)
        self.wide = nn.Parameter(torch.randn(64, dtype=torch.float64))
        self.tied = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Only the large weight's gradient, computed from a view of the matrix, needs that view.
        y = (x @ self.large)[:, :64] @ self.matrix * self.first * self.frozen + self.tied
        more = (x @ self.turned.t()).sum() + (self.odd**2).sum()
        return y.sum() ** 2 + more + (x.double() * self.wide).sum().float()


def captured_weights(
    micro_batches: int, shards: int, choice: OptimizerChoice = ADAMW
) -> CapturedStep:
    torch.manual_seed(0)
    inputs = (torch.randn(8, 64),)
    step = TrainingStep(Weights(), inputs, lambda number: inputs)
    return captured_from(
        step, CaptureOptions("here:step", 8, choice, 0, accumulate=micro_batches, shards=shards)
    )


def test_small_trained_weights_of_whole_vectors_lie_together_by_their_type() -> None:
    code = captured_weights(2, 2).code
    found = {frozenset(m.names for m in some) for some in code.members.values()}
    assert found == {frozenset({("matrix",), ("first", "tied")}), frozenset({("wide",)})}
    assert len(code.members) == 4, "two replicas of each"
    assert not any(name == () for node, name in code.names.items() if node not in code.members)


@pytest.mark.parametrize(("micro_batches", "shards"), [(1, 4), (4, 1)])
def test_one_micro_batch_or_one_shard_leaves_small_weights_alone(
    micro_batches: int, shards: int
) -> None:
    assert not captured_weights(micro_batches, shards).code.members


class Places(nn.Module):
    """Reads every second element of its weight, by where they lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.randn(64))
        self.strided = nn.Parameter(torch.randn(128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * self.before + self.strided.as_strided((64,), (2,), 0)) ** 2).mean()


def test_a_weight_whose_places_in_memory_are_named_stays_by_itself() -> None:
    losses = []
    for shards in (1, 2):
        torch.manual_seed(0)
        model, inputs = Places(), (torch.randn(8, 64),)
        step = TrainingStep(model, inputs, lambda number, given=inputs: given)
        captured = captured_from(
            step, CaptureOptions("here:step", 8, ADAMW, 0, accumulate=2, shards=shards)
        )
        run = StraightStep(captured)
        losses.append(float(run.run(run.load(0))))
    assert losses[0] == losses[1]
    assert {m.names for some in captured.code.members.values() for m in some} == {("before",)}


def test_types_that_alternate_lie_together_by_their_type_all_the_same() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, dtype=(torch.float32, torch.float64)[k % 2]) for k in range(6)]

    class Alternating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)
            self.register_parameter("small weights 0", nn.Parameter(torch.randn(64)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.get_parameter("small weights 0")
            for k, layer in enumerate(self.layers):
                x = layer(x.to((torch.float32, torch.float64)[k % 2]))
            return (x**2).mean()

    inputs = (torch.randn(8, 64),)
    step = TrainingStep(Alternating(), inputs, lambda number: inputs)
    code = captured_from(
        step, CaptureOptions("here:step", 8, ADAMW, 0, accumulate=2, shards=2)
    ).code
    assert sorted(len(some) for some in code.members.values()) == [6, 6, 7, 7]


def test_a_norm_of_gradients_leaves_small_weights_alone() -> None:
    assert not captured_weights(2, 2, OptimizerChoice(clip_norm=1.0)).code.members


def test_no_flat_parameter_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_weights, "MOST_FLAT_BYTES", 64 * 64 * 4)
    members = captured_weights(2, 2).code.members.values()
    assert sorted({tuple(m.names[0] for m in some) for some in members}) == [
        ("first",), ("matrix",), ("wide",),
    ]  # fmt: skip


@pytest.mark.parametrize(("micro_batches", "shards"), [(2, 4), (4, 2), (8, 3)])
def test_a_micro_batch_reads_one_replica_and_its_update_waits_for_all_that_read_it(
    micro_batches: int, shards: int
) -> None:
    captured = captured_weights(micro_batches, shards)
    code, graph = captured.code, captured.operators
    count = min(micro_batches, shards)
    assert len(code.members) == 2 * count
    waits_for = ancestors(captured)
    for node in code.members:
        number = int(node.rpartition("_")[2])
        update = next(writer for writer, written in code.writers.items() if written == node)
        readers = set(readers_of(captured.nodes[node])) - {captured.nodes[update]}
        parts = {reader.meta[MICRO_BATCH] for reader in readers}
        assert parts == {m for m in range(micro_batches) if m % count == number}
        assert {reader.name for reader in readers} <= waits_for[update]
        assert {int(graph.colocation[graph.index_of[i]]) for i in (node, update)} != {-1}


def readers_of(node: fx.Node) -> Iterator[fx.Node]:
    """Those that compute from it, or from views of it."""
    for user in node.users:
        if user.target in (aten.slice.Tensor, aten.view.default, aten.t.default):
            yield from readers_of(user)
        else:
            yield user


def ancestors(captured: CapturedStep) -> dict[str, set[str]]:
    graph = captured.operators
    found: dict[str, set[str]] = {}
    for i in graph.topological_order.tolist():
        above = {graph.ids[p] for p in graph.tensor_producer[graph.input_tensors(i)]}
        found[graph.ids[i]] = above.union(*(found[one] for one in above))
    return found


@pytest.mark.parametrize("choice", [ADAMW, OptimizerChoice("sgd", 1e-9, {"momentum": 0.9})])
def test_replicas_stay_equal_and_train_as_whole_weights_do(choice: OptimizerChoice) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole, cut = (captured_weights(4, shards, choice) for shards in (1, 3))
        for captured in (whole, cut):
            step = StraightStep(captured)
            for k in range(3):
                step.run(step.load(k))
    finally:
        torch.set_num_threads(before)
    expected = {part.names[0].key: value for part, value in parts_of(whole)}
    found = [(part.names[0].key, value) for part, value in parts_of(cut)]
    assert sorted({name for name, _ in found}) == sorted(expected)
    assert len(found) == len(expected) + 2 * 3, "two more replicas of three weights"
    assert all(torch.equal(value, expected[name]) for name, value in found)
    assert not any(value.isnan().any() for value in expected.values())


def parts_of(captured: CapturedStep) -> list[tuple[StatePart, torch.Tensor]]:
    return [
        (part, part.within(value))
        for node, value in captured.code.parameters.items()
        for part in captured.names.of[node]
    ]


def test_a_rank_makes_its_small_weights_alone() -> None:
    whole = capture(SMALL, 8, ADAMW, 3, 2, shards=2)
    wanted = [*whole.code.members][:1]
    part = capture_part(
        CaptureOptions(SMALL, 8, ADAMW, 3, accumulate=2, shards=2), wanted=wanted, others=False
    )
    assert not part.note and part.step.operators.structure_hash == whole.operators.structure_hash
    value = part.step.code.parameters[wanted[0]]
    assert torch.equal(value, whole.code.parameters[wanted[0]])
    assert value.untyped_storage().nbytes() == value.nbytes
