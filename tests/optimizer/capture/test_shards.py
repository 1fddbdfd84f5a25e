"""Large weights cut into shards: which are, where, and that the step stays the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewire.optimizer.capture import shards
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import CapturedStep, capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.profile.straight import StraightStep

ADAMW = OptimizerChoice()
MOMENTUM = OptimizerChoice("sgd", 0.1, {"momentum": 0.9})
STEPS = 3


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 256)


def trained(captured: CapturedStep) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses, and afterwards the weights by their names, shards joined."""
    step = StraightStep(captured)
    losses = [float(step.run(step.load(k))) for k in range(STEPS)]
    code = captured.code
    parts: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for node, value in code.parameters.items():
        start = code.shards[node].start if node in code.shards else 0
        parts.setdefault(code.names[node][0], []).append((start, value))
    ordered = {name: [value for _, value in sorted(some)] for name, some in parts.items()}
    return losses, {
        name: torch.cat(some) if len(some) > 1 else some[0] for name, some in ordered.items()
    }


@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
@pytest.mark.parametrize(("accumulate", "count"), [(1, 2), (2, 4), (4, 3)])
@pytest.mark.parametrize(
    "model",
    [
        "placewire.examples.models.transformer:training_step_small",
        "placewire.examples.models.mixture:training_step_small", "tests.models.hard:training_step",
    ],
)  # fmt: skip
def test_a_step_with_shards_trains_as_one_without(
    model: str, accumulate: int, count: int, optimizer: OptimizerChoice
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = capture(model, 8, optimizer, 3, accumulate)
        cut = capture(model, 8, optimizer, 3, accumulate, shards=count)
        assert cut.code.shards and not whole.code.shards
        (losses, weights), (others, joined) = trained(whole), trained(cut)
        assert losses == others and weights.keys() == joined.keys()
        assert all(torch.equal(weights[name], joined[name]) for name in weights)
    finally:
        torch.set_num_threads(before)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.randn(30, 64))
        self.odd = nn.Parameter(torch.randn(31, 24))  # 24 values a row: 8 rows are whole vectors
        self.even = nn.Parameter(torch.randn(64, 24))
        self.small = nn.Parameter(torch.randn(64))
        self.turned = nn.Parameter(torch.randn(64, 64).t())
        self.frozen = nn.Parameter(torch.randn(64, 64), requires_grad=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = x @ self.turned @ self.frozen @ self.large.t()
        more = x @ self.even @ self.odd.t()
        return (y.sum() + more.sum() + (x * self.small).sum() - target.sum()) ** 2


def weights_step() -> TrainingStep:
    torch.manual_seed(0)
    inputs = torch.randn(4, 64), torch.randn(4)
    return TrainingStep(Weights(), inputs, lambda number: inputs)


def captured_weights(count: int, choice: OptimizerChoice = ADAMW) -> CapturedStep:
    return captured_from(weights_step(), "here:step", 4, choice, 0, 1, None, count)


def test_large_trained_weights_are_cut_where_vectors_end() -> None:
    cut = captured_weights(3).code
    rows: dict[str, list[tuple[int, int]]] = {}
    for shard in cut.shards.values():
        rows.setdefault(shard.name, []).append((shard.start, shard.end))
    assert rows == {"large": [(0, 10), (10, 20), (20, 30)], "even": [(0, 24), (24, 40), (40, 64)]}
    assert {cut.names[node] for node in cut.shards} == {("large",), ("even",)}


def test_a_shard_keeps_no_memory_of_the_whole_weight() -> None:
    code = captured_weights(2).code
    for node in code.shards:
        assert code.parameters[node].untyped_storage().nbytes() == code.parameters[node].nbytes


def test_what_is_smaller_than_two_shards_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 3000)
    assert [shard.name for shard in captured_weights(9).code.shards.values()] == ["large"] * 2 + [
        "even"
    ] * 2


def test_a_rank_makes_its_shards_alone() -> None:
    model = "placewire.examples.models.transformer:training_step_small"
    whole = capture(model, 8, ADAMW, 3, 2, shards=2)
    wanted = [*whole.code.shards][::3]
    part = capture_part(model, 8, ADAMW, 3, 2, shards=2, wanted=wanted, others=False)
    assert not part.note and part.step.operators.structure_hash == whole.operators.structure_hash
    for node in wanted:
        value = part.step.code.parameters[node]
        assert torch.equal(value, whole.code.parameters[node])
        assert value.untyped_storage().nbytes() == value.nbytes


def test_a_norm_of_whole_gradients_needs_whole_weights() -> None:
    with pytest.raises(CaptureError, match=r"job.shards 2 cuts large, and job.optimizer.clip_norm"):
        captured_weights(2, OptimizerChoice(clip_norm=1.0))


def test_shards_are_operators_with_devices_of_their_own() -> None:
    graph = captured_weights(2).operators
    of = {name: int(graph.colocation[graph.index_of[name]]) for name in graph.ids}
    parts = [name for name in graph.ids if name.startswith("parameter_large")]
    assert len(parts) == 2 and len({of[name] for name in parts}) == 2
    assert all(of[name] == of[name.replace("parameter", "update")] for name in parts)
    assert graph.notes["shards"] == 2
    held = sum(int(graph.weight_bytes[graph.index_of[name]]) for name in parts)
    assert held == 3 * 30 * 64 * 4, "with both averages of AdamW"
