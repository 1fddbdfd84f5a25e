"""Weights cut into shards: placed anywhere they train as whole ones, and are saved as such."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from placewire.job.contract.checkpoint import CheckpointSpec, open_folder
from placewire.job.contract.specification import OptimizerSpec, Saved
from placewire.job.placed.plain_state import read_checkpoint
from placewire.job.placed.saved_tensors import SavedTensors
from placewire.job.placed.state import RankState
from placewire.job.placed.tensor_file import TensorFile, TensorFileError, write_tensors
from placewire.optimizer.capture import shards
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.lazy_training import joined, train
from tests.job.ranks import run_ranks
from tests.placements import cluster_of, placement_of, random_devices

HARD, GPT2, MLP, MIXTURE = (
    "tests.models.hard:training_step", "tests.models.small:gpt2", "tests.models.small:mlp",
    "placewire.examples.models.mixture:training_step_small",
)  # fmt: skip
# Micro-batches, shards and devices.
CUTS = ((1, 2, 2), (1, 5, 4), (2, 3, 3), (4, 4, 4))
# `make test` has each cut of the hard model, and of one other.
SAMPLE = {HARD: CUTS, GPT2: CUTS[2:3], MLP: CUTS[1::2], MIXTURE: CUTS[:1]}
CASES = [
    pytest.param(model, *cut, marks=() if cut in sample else pytest.mark.thorough)
    for model, sample in SAMPLE.items()
    for cut in CUTS
]
# Two megabytes and more, so that shards are worth their messages; the first layer is tied.
LARGE = """
import torch
from torch import nn
from placewire.optimizer.capture.protocol import TrainingStep

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4096, 256)
        self.inner = nn.Sequential(nn.Linear(256, 2048), nn.Dropout(0.1), nn.Linear(2048, 256))
        self.out = nn.Linear(256, 4096, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words):
        return self.out(self.inner(self.words(words)))

def training_step(batch, seed):
    def batches(step):
        draw = torch.Generator().manual_seed(step)
        return tuple(torch.randint(4096, (batch,), generator=draw) for _ in range(2))
    return TrainingStep(Model(), batches(0), batches, nn.CrossEntropyLoss())
"""
SAVED_AFTER, STEPS = 2, 4

Trained = tuple[list[float], dict[str, torch.Tensor]]


def trained_whole(whole: CapturedStep) -> Trained:
    """What one rank trains of the step without shards."""
    graph = whole.operators
    return train(whole, placement_of(graph, cluster_of(1), dict.fromkeys(graph.ids, "s1/0")))


def differences(
    whole: CapturedStep, right: Trained, cut: CapturedStep, devices: int, seed: int
) -> list[str]:
    """What a random placement of the step with shards trains otherwise than one rank without,
    which trained `right`."""
    cluster = cluster_of(devices)
    where = random_devices(cut.operators, cluster, seed)
    bundles = None if seed % 2 else seed
    placed = placement_of(cut.operators, cluster, where, order_seed=seed, bundle_seed=bundles)
    losses, values = right
    others, parts = train(cut, placed)
    found = [] if losses == others else ["loss"]
    weights, same = joined(whole, values), joined(cut, parts)
    assert weights.keys() == same.keys()
    return found + [name for name in weights if not torch.equal(weights[name], same[name])]


@pytest.mark.parametrize(("model", "accumulate", "count", "devices"), CASES)
def test_shards_anywhere_train_as_whole_weights_on_one_rank(
    monkeypatch: pytest.MonkeyPatch, model: str, accumulate: int, count: int, devices: int
) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 256)
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 0.0)
    choice = OptimizerChoice(lr=1e-2)
    whole = capture(model, 4, choice, 3, accumulate)
    cut = capture(model, 4, choice, 3, accumulate, shards=count)
    assert len({shard.name for shard in cut.code.shards.values()}) >= 2
    right = trained_whole(whole)
    for seed in (1, 2):
        assert differences(whole, right, cut, devices, seed) == []


def test_with_the_rows_of_another_shard_it_trains_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 256)
    monkeypatch.setattr(shards, "LEAST_SHARD_PART", 0.0)
    model, choice = "tests.models.small:mlp", OptimizerChoice(lr=1e-2)
    whole, rows_of = capture(model, 4, choice, 3), shards._rows_of

    def turned(gradient: object, parts: dict[str, object]) -> dict[str, object]:
        found = [*rows_of(gradient, parts).values()]  # type: ignore[arg-type]
        return dict(zip(parts, reversed(found), strict=True))

    monkeypatch.setattr(shards, "_rows_of", turned)
    cut = capture(model, 4, choice, 3, shards=2)
    assert differences(whole, trained_whole(whole), cut, 2, 1)


def test_ranks_save_shards_from_which_others_and_pytorch_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: three save, two go on, one without shards shows what both must be."""
    (tmp_path / "model_with_shards.py").write_text(LARGE)
    monkeypatch.syspath_prepend(tmp_path)
    model, adamw = "model_with_shards:training_step", OptimizerSpec(name="adamw", lr=1e-2)
    choice = OptimizerChoice("adamw", 1e-2)
    cut = capture(model, 8, choice, 3, 2, shards=3)
    assert len(cut.code.shards) == 3 + 2 + 2
    whole = capture(model, 8, choice, 3, 2)

    def run(captured: CapturedStep, devices: int, steps: int, folder: str) -> list[float]:
        graph, cluster = captured.operators, cluster_of(devices)
        placement = placement_of(graph, cluster, random_devices(graph, cluster, devices))
        ranks = run_ranks(
            placement, tmp_path, kind="placed", model=model, batch=8, seed=3, accumulate=2,
            shards=captured.operators.notes["shards"], optimizer=adamw, steps=steps,
            checkpoint=CheckpointSpec(folder=str(tmp_path / folder), every=SAVED_AFTER),
        )  # fmt: skip
        assert any(isinstance(event, Saved) for rank in ranks for event in rank.events)
        (losses,) = (rank.losses for rank in ranks if rank.losses)
        return losses

    expected = run(whole, 1, STEPS, "whole")
    assert run(cut, 3, SAVED_AFTER, "cut") == expected[:SAVED_AFTER]
    assert run(cut, 2, STEPS, "cut") == expected[SAVED_AFTER:]
    for step in (SAVED_AFTER, STEPS):
        states = [read_checkpoint(tmp_path / name / f"step-{step:08}") for name in ("whole", "cut")]
        flat = [dict(flattened(state)) for state in states]
        assert flat[0].keys() == flat[1].keys()
        for name, value in flat[0].items():
            other = flat[1][name]
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
                assert torch.equal(value, other), name
            else:
                assert value == other, name


def test_each_replica_of_a_small_weight_is_loaded(tmp_path: Path) -> None:
    """Also where one rank has several."""
    made = capture("tests.models.hard:training_step", 8, OptimizerChoice(), 3, 2, shards=2)
    held = {node: made.code.parameters[node] for node in made.code.members}
    assert len(held) == 2
    state = RankState(made.names.of, held, {}, {})
    saved = {name: torch.full_like(value, 7.0) for name, value in state.to_save(0).items()}
    with opened(tmp_path, saved, {}) as tensors:
        tensors.load(state.to_load(0))
    assert all(bool((value == 7.0).all()) for value in held.values())


def flattened(tree: object, path: str = "") -> list[tuple[str, object]]:
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [one for key, value in tree.items() for one in flattened(value, f"{path}/{key}")]


ONE, TWO = torch.ones(1, 3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"model.a[0:2]": TWO, "model.a[3:4]": ONE}, "row 2 is not"),
        ({"model.a[1:2]": ONE}, "row 0 is not"),
        ({"model.a[0:2]": ONE}, "row 0 is not"),
        ({"model.a[0:2]": TWO}, "has 4 rows, and 2 of them are there"),
        ({"model.a[0:1]": ONE, "model.a[1:2]": torch.ones(1, 2)}, "do not fit"),
        ({"model.a[0:2]": TWO, "model.a[2:4]": TWO.double()}, "do not fit"),
        ({"model.a[0:2]": TWO, "model.a[2:4]": torch.tensor(1.0)}, "do not fit"),
        ({"model.a": torch.ones(4, 3), "model.a[0:2]": TWO}, "whole and by rows"),
    ],
)
def test_rows_that_make_no_weight_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], why: str
) -> None:
    with pytest.raises(TensorFileError, match=why):
        read_all(tmp_path, tensors, {"model.a": "float32[4, 3]"})


def test_state_is_joined_as_its_weight_is(tmp_path: Path) -> None:
    described, state = {"model.a": "float32[4, 3]"}, "optimizer.state.a"
    steps = {f"{state}.step[{rows}]": torch.tensor(7.0) for rows in ("0:2", "2:4")}
    averages = {f"{state}.exp_avg[0:2]": TWO, f"{state}.exp_avg[2:4]": TWO * 2}
    found = read_all(tmp_path, {**steps, **averages}, described)
    assert found.keys() == {f"{state}.step", f"{state}.exp_avg"} and found[f"{state}.step"] == 7
    assert torch.equal(found[f"{state}.exp_avg"], torch.cat([TWO, TWO * 2]))
    del averages[f"{state}.exp_avg[2:4]"]
    with pytest.raises(TensorFileError, match="has 4 rows, and 2 of them are there"):
        read_all(tmp_path, averages, described)


def test_a_weight_may_have_a_name_like_that_of_rows(tmp_path: Path) -> None:
    name = "model.w[0:2]"
    assert read_all(tmp_path, {name: ONE}, {name: "float32[1, 3]"}).keys() == {name}


WEIGHT = torch.arange(12.0).reshape(4, 3)
ROWS = (
    [(0, 4)],
    [(0, 2), (2, 4)],
    [(0, 1), (1, 4)],
    [(0, 3), (3, 4)],
    [(k, k + 1) for k in range(4)],
)


def by_rows(cut: list[tuple[int, int]], change: float = 0.0) -> dict[str, torch.Tensor]:
    """A weight and its optimizer state as ranks name them that have it cut so, or whole."""
    found: dict[str, torch.Tensor] = {}
    for start, end in cut:
        suffix = f"[{start}:{end}]" if len(cut) > 1 else ""
        found[f"model.a{suffix}"] = WEIGHT[start:end] + change
        found[f"optimizer.state.a.exp_avg{suffix}"] = -WEIGHT[start:end] + change
        found[f"optimizer.state.a.step{suffix}"] = torch.tensor(7.0 + change)
    return found


@pytest.mark.parametrize("saved", ROWS, ids=str)
@pytest.mark.parametrize("wanted", ROWS, ids=str)
def test_what_was_cut_otherwise_or_not_is_loaded(
    tmp_path: Path, saved: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    found, expected = by_rows(wanted, change=100.0), by_rows(wanted)
    with opened(tmp_path, by_rows(saved), {"model.a": "float32[4, 3]"}) as tensors:
        tensors.load(found.items())
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_only_the_rows_that_a_rank_has_are_read(tmp_path: Path) -> None:
    """A rank needs no memory for a whole weight of which it has a shard."""
    with opened(tmp_path, by_rows([(0, 4)]), {}) as tensors:
        (file,) = {*tensors._file_of.values()}
        rows = file.read("model.a", slice(1, 3))
        assert torch.equal(rows, WEIGHT[1:3]) and rows.untyped_storage().nbytes() == 2 * 3 * 4


@pytest.mark.parametrize(
    ("saved", "name", "like", "why"),
    [
        ({"model.a": WEIGHT}, "model.a[2:6]", WEIGHT, "has 4 rows there, and .* 6 here"),
        ({"model.a[0:4]": WEIGHT}, "model.a", ONE, "has 4 rows there, and model.a 1 here"),
        ({"model.a": WEIGHT}, "model.a[0:1]", ONE.double(), "float32.* there, and float64"),
        ({"model.a": WEIGHT}, "model.a[0:1]", torch.ones(1, 2), r"\[4, 3\] there, and .*\[1, 2\]"),
        ({"model.a": ONE[0, 0]}, "model.a[0:1]", ONE, r"float32\[\] there"),
        ({"model.a": WEIGHT}, "model.a[0:1]", ONE[0, 0], r"\[4, 3\] there, and float32\[\] here"),
        ({"model.a[0:2]": TWO}, "model.a[0:1]", ONE, "has 4 rows, and 2 of them are there"),
        ({"model.a[1:4]": WEIGHT[1:]}, "model.a[2:3]", ONE, "row 0 is not"),
        ({"model.a[0:4]": TWO}, "model.a[0:1]", ONE, "there"),
        ({"model.b": WEIGHT}, "model.a[0:1]", ONE, r"it has no model.a\[0:1\]"),
    ],
)
def test_what_cannot_be_cut_so_is_refused(
    tmp_path: Path, saved: dict[str, torch.Tensor], name: str, like: torch.Tensor, why: str
) -> None:
    before = torch.full_like(like, 5)
    target = before.clone()
    with (
        opened(tmp_path, saved, {"model.a": "float32[4, 3]"}) as tensors,
        pytest.raises(TensorFileError, match=why),
    ):
        tensors.load([(name, target)])
    assert torch.equal(target, before)


def read_all(
    folder: Path, tensors: dict[str, torch.Tensor], described: dict[str, str]
) -> dict[str, torch.Tensor]:
    (folder / "rank0").unlink(missing_ok=True)
    with opened(folder, tensors, described) as saved:
        return {name: saved.read(name) for name in saved}


@contextmanager
def opened(
    folder: Path, tensors: dict[str, torch.Tensor], described: dict[str, str]
) -> Iterator[SavedTensors]:
    write_tensors(open_folder(folder), "rank0", tensors)
    with TensorFile(folder / "rank0") as file:
        yield SavedTensors([file], described)
