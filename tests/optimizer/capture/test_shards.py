"""Large weights cut into shards: which are, where, and that the step stays the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from placewire.optimizer.capture import deferred, shards
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.memory import held_bytes
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.protocol import TrainingStep
from placewire.optimizer.capture.step import capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.profile.straight import StraightStep

ADAMW = OptimizerChoice()
MOMENTUM = OptimizerChoice("sgd", 0.1, {"momentum": 0.9})
RMSPROP = OptimizerChoice("torch.optim:RMSprop", 1e-3, {"momentum": 0.9})
STEPS = 3


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 256)
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 0.0)


def trained(captured: CapturedStep) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses, and afterwards the weights by their names, shards joined."""
    step = StraightStep(captured)
    losses = [float(step.run(step.load(k))) for k in range(STEPS)]
    code = captured.code
    parts: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for node, value in code.parameters.items():
        for part in captured.names.of[node]:
            start = part.shard.start if part.shard else 0
            parts.setdefault(part.names[0].key, []).append((start, part.within(value)))
    ordered = {name: [value for _, value in sorted(some)] for name, some in parts.items()}
    return losses, {
        name: torch.cat(some) if len(some) > 1 else some[0] for name, some in ordered.items()
    }


MODELS = (
    "placewire.examples.models.transformer:training_step_small",
    "placewire.examples.models.mixture:training_step_small", "tests.models.hard:training_step",
)  # fmt: skip
CUTS = ((1, 2), (2, 4), (4, 3))
OPTIMIZERS = {"adamw": ADAMW, "momentum": MOMENTUM, "RMSprop": RMSPROP}
# `make test` has each two of a model, a cut and an optimizer together once.
CASES = [
    pytest.param(
        MODELS[model], *CUTS[cut], optimizer,
        marks=() if number == (model + cut) % 3 else pytest.mark.thorough,
        id="-".join(map(str, (MODELS[model], *CUTS[cut], name))),
    )
    for model, cut in itertools.product(range(3), range(3))
    for number, (name, optimizer) in enumerate(OPTIMIZERS.items())
]  # fmt: skip


@pytest.mark.parametrize(("model", "accumulate", "count", "optimizer"), CASES)
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
    return captured_from(weights_step(), CaptureOptions("here:step", 4, choice, 0, shards=count))


def test_large_trained_weights_are_cut_where_vectors_end() -> None:
    cut = captured_weights(3).code
    rows: dict[str, list[tuple[int, int]]] = {}
    for shard in cut.shards.values():
        rows.setdefault(shard.name, []).append((shard.start, shard.end))
    assert rows == {
        "large": [(0, 10), (10, 20), (20, 30)], "odd": [(0, 8), (8, 24), (24, 31)],
        "even": [(0, 24), (24, 40), (40, 64)],
    }  # fmt: skip
    assert {cut.names[node] for node in cut.shards} == {("large",), ("even",), ("odd",)}


def test_shards_take_the_memory_of_the_weights_that_they_are_of() -> None:
    whole, cut = (StraightStep(captured_weights(count)) for count in (1, 3))
    more_steps = 4 * (9 - 3)  # each update counts them, as a float32
    assert held_bytes(cut.module) == held_bytes(whole.module) + more_steps


def test_what_is_smaller_than_two_shards_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 3000)
    names = [shard.name for shard in captured_weights(9).code.shards.values()]
    assert names == ["large", "large", "even", "even"]


def test_only_weights_that_are_a_large_part_of_all_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained ones have 33,440 bytes, of which large has 7,680, even 6,144 and odd 2,976."""
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 1 / 12)
    names = [shard.name for shard in captured_weights(9).code.shards.values()]
    assert names == ["large", "large", "even", "even"]
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 1 / 9)
    names = [shard.name for shard in captured_weights(9).code.shards.values()]
    assert names == ["large", "large"]


def test_a_rank_makes_its_shards_alone() -> None:
    model = "placewire.examples.models.transformer:training_step_small"
    whole = capture(model, 8, ADAMW, 3, 2, shards=2)
    wanted = [*whole.code.shards][::3]
    part = capture_part(
        CaptureOptions(model, 8, ADAMW, 3, accumulate=2, shards=2), wanted=wanted, others=False
    )
    assert not part.note and part.step.operators.structure_hash == whole.operators.structure_hash
    for node in wanted:
        value = part.step.code.parameters[node]
        assert torch.equal(value, whole.code.parameters[node])
        assert value.untyped_storage().nbytes() == value.nbytes


EQUAL = """
import torch
from torch import nn
from placewire.optimizer.capture.protocol import TrainingStep

def training_step(batch, seed):
    def batches(step):
        return (torch.randn(batch, 64, generator=torch.Generator().manual_seed(step)),) * 2
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    return TrainingStep(model, batches(0), batches, nn.MSELoss())
"""


def test_a_rank_makes_one_whole_weight_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "equal_layers.py").write_text(EQUAL)
    monkeypatch.syspath_prepend(tmp_path)
    model = "equal_layers:training_step"
    code = capture(model, 8, ADAMW, 3, shards=4).code
    firsts = [node for node, shard in code.shards.items() if shard.start == 0]
    most, repeat = [0], deferred._repeat

    def counted(operation: Any, values: dict[int, torch.Tensor]) -> None:
        repeat(operation, values)
        memory = {v.untyped_storage().data_ptr(): v.untyped_storage() for v in values.values()}
        most[0] = max(most[0], sum(one.nbytes() for one in memory.values()))

    monkeypatch.setattr(deferred, "_repeat", counted)
    part = capture_part(
        CaptureOptions(model, 8, ADAMW, 3, shards=4), wanted=firsts, others=False
    ).step
    assert all(torch.equal(part.code.parameters[n], code.parameters[n]) for n in firsts)
    one_weight = 64 * 64 * 4
    assert len(firsts) == 8 and one_weight <= most[0] < 3 * one_weight


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 64))
        self.register_parameter("w[0:4]", nn.Parameter(torch.randn(4, 64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.w.t()).sum() ** 2 + (x @ self.get_parameter("w[0:4]").t()).sum() ** 2


def test_a_weight_stays_whole_whose_rows_have_another_weight_s_name() -> None:
    inputs = (torch.randn(4, 64),)
    step = TrainingStep(Named(), inputs, lambda number: inputs)
    cut = captured_from(step, CaptureOptions("here:step", 4, ADAMW, 0, shards=2)).code
    assert {shard.name for shard in cut.shards.values()} == {"w[0:4]"}


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
    model = "placewire.examples.models.transformer:training_step_small"
    code = capture(model, 9, ADAMW, 3, 3, shards=2).code
    joins = [n for n in code.graph.nodes if n.target is torch.ops.aten.cat.default]
    weights = {shard.name for shard in code.shards.values()}
    of_shards = [n for n in joins if n.args[0][0].name in code.shards]
    assert len(of_shards) == 3 * len(weights), "each micro-batch joins each weight for itself"
    held = sum(int(graph.weight_bytes[graph.index_of[name]]) for name in parts)
    assert held == 3 * 30 * 64 * 4, "with both averages of AdamW"
