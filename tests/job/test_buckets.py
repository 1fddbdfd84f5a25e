"""Ranks whose batches are of several lengths train as eager PyTorch does, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.checkpoint import CheckpointSpec
from placewire.job.contract.specification import (
    Resumed,
    Saved,
    ScalerSpec,
    StepDone,
    TraceSpec,
    Validated,
    ValidationSpec,
)
from placewire.job.placed.plain_state import read_checkpoint
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.gradient_scaler import GradientScaler
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement, save_placement
from tests.job.eager_validated import Means, trained_and_validated
from tests.job.ranks import LONGEST_SECONDS, Rank, end, run_ranks, start_ranks
from tests.job.test_checkpoint import ADAMW
from tests.models.lengths import TURNS
from tests.placements import cluster_of, placement_of, random_devices

pytestmark = pytest.mark.slow

MODEL = "tests.models.lengths:training_step"
CHOICE = OptimizerChoice("adamw", 1e-2)
BATCH, SEED, STEPS, BATCHES, EVERY = 4, 3, 9, 3, 4


@pytest.fixture(scope="module", autouse=True)
def as_on_ranks() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def captured() -> CapturedStep:
    return capture(MODEL, BATCH, CHOICE, SEED)


def placements(captured: CapturedStep, devices: int, seed: int = 1) -> dict[str, Placement]:
    """Random ones, which agree about parameters, buffers and what updates them."""
    cluster = cluster_of(devices, ("a", "b"))
    first = random_devices(captured.operators, cluster, seed)
    found = {}
    for k, (name, one) in enumerate(captured.each_bucket.items()):
        graph = one.operators
        own = first if not k else random_devices(graph, cluster, seed + k)
        groups = {
            int(graph.colocation[graph.index_of[i]]): first[i]
            for i in one.values
            if graph.colocation[graph.index_of[i]] >= 0
        }
        for identifier, group in zip(graph.ids, graph.colocation.tolist(), strict=True):
            own[identifier] = groups.get(group, own[identifier])
        own |= {identifier: first[identifier] for identifier in one.values}
        found[name] = placement_of(graph, cluster, own, order_seed=seed + k)
    return found


def options(folder: Path, found: Mapping[str, Placement], **more: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: str(folder / f"bucket{name}.json") for name in found if name != "12"}
    for name, file in files.items():
        save_placement(found[name], Path(file))
    return {
        "kind": "placed", "model": MODEL, "batch": BATCH, "seed": SEED, "steps": STEPS,
        "optimizer": ADAMW, "bucket_files": files,
        "validation": ValidationSpec(every=EVERY, batches=BATCHES),
        "checkpoint": CheckpointSpec(folder=str(folder / "kept"), every=STEPS), **more,
    }  # fmt: skip


def run(folder: Path, found: Mapping[str, Placement], **more: Any) -> list[Rank]:
    first = next(iter(found.values()))
    # One rank captures the step itself.
    several = len(first.devices_used) > 1
    asked = options(folder, found, **more)
    return run_ranks(first, folder, ("a", "b"), captured_once=several, **asked)


def losses(ranks: list[Rank]) -> list[float]:
    """Of each step, by whichever rank computes it in the step's bucket."""
    told = {e.step: e.loss for r in ranks for e in r.events if isinstance(e, StepDone) and e.loss}
    return [told[step] for step in sorted(told)]


def validated(ranks: list[Rank]) -> Means:
    told = [e for rank in ranks for e in rank.events if isinstance(e, Validated)]
    assert len({one.rank for one in told}) == 1
    assert all(one.batches == BATCHES for one in told)
    return {one.step: (float(one.loss or 0), one.metrics["accuracy"]) for one in told}


def state(ranks: list[Rank]) -> dict[str, torch.Tensor]:
    *_, saved = (e for rank in ranks for e in rank.events if isinstance(e, Saved))
    return flat(read_checkpoint(Path(saved.path)))


def flat(nested: Mapping[str, Any], before: str = "") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}.")
        elif isinstance(value, torch.Tensor):
            found[f"{before}{key}"] = value
    return found


def require_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def eager(accumulate: int = 1) -> tuple[list[float], Means, torch.nn.Module]:
    found = trained_and_validated(
        MODEL, CHOICE, BATCH, SEED, steps=STEPS, every=EVERY, batches=BATCHES,
        accumulate=accumulate,
    )  # fmt: skip
    return found.losses, found.means, found.model


@pytest.mark.parametrize("several", [(2,), pytest.param((3, 4), marks=pytest.mark.thorough)])
def test_one_rank_and_several_train_as_pytorch(
    tmp_path: Path, captured: CapturedStep, several: tuple[int, ...]
) -> None:
    expected, means, model = eager()
    assert [*means] == [4, 8, 9]
    one = run(tmp_path / "1", placements(captured, 1))
    assert losses(one) == expected and validated(one) == means
    saved = state(one)
    for name, value in model.state_dict().items():
        assert torch.equal(saved[f"model.{name}"], value), name
    assert saved["model.seen"].item() == sum(TURNS[k % len(TURNS)] for k in range(STEPS))
    for devices in several:
        found = placements(captured, devices)
        ranks = run(tmp_path / str(devices), found)
        assert losses(ranks) == expected and validated(ranks) == means
        require_equal(state(ranks), saved)
        for rank in ranks:
            told = [e.bucket for e in rank.events if isinstance(e, StepDone)]
            assert told == [str(TURNS[k % len(TURNS)]) for k in range(STEPS)]
            planned = {
                name: sum(m.bytes for m in one.messages if m.source == rank.spec.device)
                for name, one in found.items()
            }
            sent = sum(one.bytes for one in rank.finished.traffic)
            assert sent == sum(planned[name] for name in map(str, told))


@pytest.mark.thorough
def test_a_resumed_job_goes_on_as_one_that_was_never_interrupted(
    tmp_path: Path, captured: CapturedStep
) -> None:
    expected, means, _ = eager()
    kept = CheckpointSpec(folder=str(tmp_path / "kept"), every=5)
    run(tmp_path / "first", placements(captured, 2), checkpoint=kept, steps=5)
    ranks = run(tmp_path / "second", placements(captured, 3, seed=7), checkpoint=kept)
    assert [e.step for rank in ranks for e in rank.events if isinstance(e, Resumed)] == [5]
    assert losses(ranks) == expected[5:]
    assert validated(ranks) == {step: means[step] for step in (8, 9)}


@pytest.mark.thorough
def test_buckets_are_cut_into_micro_batches_with_replicas_of_weights(tmp_path: Path) -> None:
    expected, means, model = eager(accumulate=2)
    captured = capture(MODEL, BATCH, CHOICE, SEED, 2, shards=2)
    assert captured.code.members
    ranks = run(tmp_path, placements(captured, 2), accumulate=2, shards=2)
    assert losses(ranks) == expected and validated(ranks) == means
    saved = state(ranks)
    for name, value in model.state_dict().items():
        assert torch.equal(saved[f"model.{name}"], value), name


def test_a_batch_of_no_bucket_ends_the_job_and_is_named(
    tmp_path: Path, captured: CapturedStep
) -> None:
    found = placements(captured, 2)
    asked = options(tmp_path, found, model="tests.models.lengths:of_another_length")
    ranks = start_ranks(found["12"], tmp_path, ("a", "b"), captured_once=True, **asked)
    assert [rank.finish(LONGEST_SECONDS) for rank in ranks] == [1, 1]
    for rank in ranks:
        assert len(rank.step_seconds) == 2
        assert "batches(2) returned int64[4, 7], int64[4, 7]" in rank.failed.what
        assert "'5' has int64[4, 5], int64[4, 5]" in rank.failed.what


@pytest.mark.parametrize(
    ("model", "batch", "steps_done"),
    [
        ("otherwise_drawn", "batches(2)", 2),
        pytest.param("otherwise_validated", "validation(1)", EVERY, marks=pytest.mark.thorough),
    ],
)
def test_batches_that_differ_between_ranks_end_the_job_and_are_named(
    tmp_path: Path, captured: CapturedStep, model: str, batch: str, steps_done: int
) -> None:
    found = placements(captured, 3)
    asked = options(tmp_path, found, last={"model": f"tests.models.lengths:{model}"})
    ranks = start_ranks(found["12"], tmp_path, ("a", "b"), captured_once=True, **asked)
    assert [rank.finish(LONGEST_SECONDS) for rank in ranks] == [1, 1, 1]
    devices = [rank.spec.device for rank in ranks]
    ours, theirs = ("5", "12") if batch == "batches(2)" else ("8", "5")
    each = f"{ours!r} on {devices[0]}, {devices[1]}; {theirs!r} on {devices[2]}"
    for rank in ranks:
        assert len(rank.step_seconds) == steps_done
        assert f"{batch} of tests.models.lengths:" in rank.failed.what
        assert f"is not of the same bucket on all ranks: {each}" in rank.failed.what


@pytest.mark.parametrize(
    "wrong",
    [
        "one is missing",
        pytest.param("another owner", marks=pytest.mark.thorough),
        pytest.param("trace", marks=pytest.mark.thorough),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_step(
    tmp_path: Path, captured: CapturedStep, wrong: str
) -> None:
    found = placements(captured, 2)
    more: dict[str, Any] = {}
    if wrong == "one is missing":
        del found["5"]
    elif wrong == "another owner":
        other = placements(captured, 2, seed=9)
        assert any(other["5"].operators[i] != found["12"].operators[i] for i in captured.values)
        found["5"] = other["5"]
    else:
        more["trace"] = TraceSpec(folder=str(tmp_path), steps=1)
    asked = options(tmp_path, found, **more)
    ranks = start_ranks(found["12"], tmp_path, ("a", "b"), captured_once=True, **asked)
    try:
        # Rank 0 may be gone before the other one finds it, which a controller would then end.
        assert ranks[0].finish(LONGEST_SECONDS) == 1
    finally:
        end(ranks)
    said = {
        "one is missing": "beside '12' tests.models.lengths:training_step has buckets '5', '8', "
        "and there are placements for '8'",
        "another owner": "the placement of bucket '5' has ",
        "trace": "has buckets, and the steps of a trace are of one shape",
    }
    assert said[wrong] in ranks[0].failed.what
    assert not any(rank.step_seconds for rank in ranks)


@pytest.mark.thorough
def test_a_loss_is_scaled_alike_in_every_bucket(tmp_path: Path) -> None:
    """The scale, and the steps since it changed, belong to all buckets together."""
    scaler = GradientScaler(2.0**24, growth_interval=2)
    step = capture(MODEL, BATCH, replace(CHOICE, scaler=scaler), SEED, autocast="fp16")
    spec = ADAMW.model_copy(update={"scaler": ScalerSpec(**asdict(scaler))})
    told = dict[str, Any](optimizer=spec, autocast="fp16")
    one = run(tmp_path / "1", placements(step, 1), **told)
    scales = [e.metrics["scale"] for r in one for e in r.events if isinstance(e, StepDone)]
    assert len(scales) == STEPS and scales[0] == 2.0**24 and min(scales) < scales[0]
    assert any(later > before for before, later in pairwise(scales)), "no scale has grown"
    for devices in (2, 3):
        several = run(tmp_path / f"{devices}", placements(step, devices, devices), **told)
        assert losses(several) == losses(one)
        require_equal(state(several), state(one))
