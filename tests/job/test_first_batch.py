"""Ranks that read a batch must read the same one: the first is compared, whatever their devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.specification import StepDone
from placewire.job.errors import JobError
from placewire.job.placed.first_batch import require_same, told_of
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement
from tests.job.ranks import LONGEST_SECONDS, Rank, end, run_ranks, start_ranks
from tests.models.drawn import READING_SECONDS
from tests.placements import cluster_of, placement_of

DEVICES = ("s1/0", "s2/0", "s3/0")
Tensors = tuple[torch.Tensor, ...]


def floats(seed: int = 0) -> torch.Tensor:
    return torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))


def words(seed: int = 0) -> torch.Tensor:
    return torch.randint(50_000, (64, 8), generator=torch.Generator().manual_seed(seed))


def compared(*read: Tensors, tensors: int = 2) -> None:
    count = max(map(len, read))
    told = [told_of(one, count) for one in read]
    assert {len(one) for one in told} == {2 * count}
    require_same(told, DEVICES, tensors, "batches(3) of m:f")


def one_word_more() -> torch.Tensor:
    changed = words()
    changed[63, 7] += 1
    return changed


@pytest.mark.parametrize(
    ("other", "number"),
    [
        ((floats(1), words()), 0),
        ((floats().flip(0), words()), 0),
        ((torch.cat([floats()[:63], floats(1)[:1]]), words()), 0),
        ((floats(), one_word_more()), 1),
    ],
    ids=["others", "another order", "one row", "one word"],
)
def test_another_batch_is_refused_with_who_read_it(other: Tensors, number: int) -> None:
    with pytest.raises(JobError) as refused:
        compared((), (floats(), words()), other)
    assert refused.value.what == (
        f"batches(3) of m:f is not the same on all ranks: tensor {number} of it, from 0, is one on "
        "rank 1 (s2/0) and another on rank 2 (s3/0)"
    )
    assert "sort what a folder lists" in refused.value.remedy
    assert "never by the time" in refused.value.remedy
    assert "the same version of the data on every server" in refused.value.remedy


@pytest.mark.parametrize(
    "make",
    [
        floats,
        words,
        lambda: floats() > 0,
        lambda: torch.view_as_complex(floats().view(64, 4, 2)),
        lambda: floats().bfloat16(),
        lambda: torch.zeros(3),
        lambda: torch.zeros(0, 4),
        lambda: torch.tensor(float("nan")),
        lambda: torch.full((4,), float("-inf")),
        lambda: words().t(),
    ],
)
def test_the_same_batch_is_taken_for_the_same(make: Any) -> None:
    compared((make(),), (make().clone(),), (), tensors=1)


def test_last_bits_may_differ_between_processors() -> None:
    """Which draw, and resize images, by other functions."""
    compared((floats(), words()), (floats() * (1 + 1e-6), words()))


def test_the_tensor_of_a_micro_batch_is_named_as_the_batch_has_it() -> None:
    cut = (floats(), words(), floats(1), words(1))
    with pytest.raises(JobError, match="tensor 1 of it"):
        compared(cut, (*cut[:3], words(2)))


def test_a_large_tensor_is_read_in_part() -> None:
    large = torch.zeros(5_000_000)
    compared((large,), (large.clone(),), tensors=1)
    with pytest.raises(JobError):
        compared((large,), (large + 1.0,), tensors=1)


def spread(model: str, devices: int) -> Placement:
    """Each rank reads one of the two tensors."""
    graph = capture(f"tests.models.drawn:{model}", 4, OptimizerChoice(), 3).operators
    cluster = cluster_of(devices)
    chosen = dict.fromkeys(graph.ids, "s1/0")
    if devices > 1:
        chosen["input_1"] = "s2/0"
    return placement_of(graph, cluster, chosen)


def asked(model: str) -> dict[str, Any]:
    return {
        "kind": "placed", "model": f"tests.models.drawn:{model}", "batch": 4, "steps": 3, "seed": 3,
    }  # fmt: skip


def told_by(ranks: list[Rank]) -> list[StepDone]:
    return [event for rank in ranks for event in rank.events if isinstance(event, StepDone)]


def test_ranks_draw_alike_and_tell_how_long_they_read(tmp_path: Path) -> None:
    model = "by_the_global_ones"
    alone = run_ranks(spread(model, 1), tmp_path / "1", **asked(model))
    both = run_ranks(spread(model, 2), tmp_path / "2", **asked(model))
    assert len(alone[0].losses) == 3
    assert [rank.losses for rank in both if rank.losses] == [alone[0].losses]
    assert {one.rank for one in told_by(both)} == {0, 1}
    assert min(one.load_seconds for one in told_by(both)) >= READING_SECONDS


def test_ranks_that_draw_by_the_time_end_before_the_first_step(tmp_path: Path) -> None:
    model = "by_the_time"
    ranks = start_ranks(spread(model, 2), tmp_path, **asked(model))
    try:
        assert [rank.finish(LONGEST_SECONDS) for rank in ranks] == [1, 1]
    finally:
        end(ranks)
    for rank in ranks:
        assert "tensor 1 of it, from 0, is one on rank 0 (s1/0) and another on rank 1 (s2/0)" in (
            rank.failed.what
        )
        assert rank.failed.what.startswith("batches(0) of tests.models.drawn:by_the_time is not")
    assert not told_by(ranks)
