"""A training that diverges goes on: it is told, and its last good checkpoint is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.checkpoint import CheckpointSpec, checkpoints_in
from placewire.job.contract.specification import OptimizerSpec, RankSpec, ScalerSpec
from placewire.job.placed.losses import Losses, non_finite
from placewire.job.placed.old_checkpoints import old_checkpoints
from placewire.job.placed.resume import Beginning, begin, changes
from tests.job.test_checkpoint import (
    Job,
    job,
    manifest,
    one_thread,  # noqa: F401 - a fixture
    together,
)

NAN, INFINITE = float("nan"), float("inf")


def spec(**options: object) -> RankSpec:
    return RankSpec.model_validate({
        "kind": "placed", "rank": 0, "world_size": 1, "device": "s1/0", "steps": 100,
        "master_address": "127.0.0.1", "master_tcp_port": 1, "rail_interfaces": (),
        "placement_file": "", **options,
    })  # fmt: skip


def followed(
    losses: Sequence[float | None], first: int = 0, of: Losses | None = None
) -> tuple[Losses, list[str]]:
    """None: another rank computes the loss."""
    of, told = of or Losses(spec(), Beginning(first, first - 1)), list[str]()
    for step, loss in enumerate(losses, first):
        kind = None if loss is None else non_finite(loss)
        of.after(step, loss if kind is None else None, kind, told.append)
    return of, told


def test_what_is_no_number_is_named() -> None:
    assert [non_finite(loss) for loss in (NAN, INFINITE, -INFINITE)] == ["nan", "inf", "-inf"]
    assert non_finite(3.4e38) is None


def test_the_first_step_of_each_such_stretch_is_told_and_no_more_than_three() -> None:
    losses, told = followed([2.0, NAN, NAN, 1.0, INFINITE, 1.0, NAN, 1.0, NAN])
    assert [note.partition(".")[0] for note in told] == [
        "the loss of step 1 is nan", "the loss of step 4 is inf", "the loss of step 6 is nan",
    ]  # fmt: skip
    assert losses.last_finite_step == 7
    assert "end the job, begin it anew with a lower job.optimizer.lr" in told[0]


def test_losses_that_stay_so_are_told_though_single_ones_were_before() -> None:
    single = [INFINITE, 1.0] * 3
    losses, told = followed([*single, *[NAN] * 19])
    assert len(told) == 3
    _, told = followed([NAN, NAN], first=25, of=losses)
    assert len(told) == 1, "once"
    assert told[0].startswith("no loss from step 6 to step 25 was finite, and the last is nan. Th")
    assert "without what is wrong in the batch of step 6" in told[0]
    assert followed([1.0, *[NAN] * 20], first=27, of=losses)[1], "it had recovered"


def test_who_computes_no_loss_says_nothing_of_it() -> None:
    losses, told = followed([None, None])
    assert (losses.last_finite_step, told) == (-1, [])


def test_what_is_told_says_where_to_go_on_and_what_a_scaler_does() -> None:
    asked = {
        "checkpoint": CheckpointSpec(folder="/c", every=2),
        "optimizer": OptimizerSpec(scaler=ScalerSpec()),
    }
    (told,) = followed([2.0, NAN], of=Losses(spec(**asked), Beginning()))[1]
    assert "where the metric `skipped` is 1, the scaler left the parameters as they were" in told
    assert "kept beyond job.checkpoint.keep until a loss is finite again" in told
    assert "move its checkpoints after 1 and more steps away" in told


def test_a_job_that_resumes_after_it_diverged_was_told_so_then() -> None:
    diverged = Losses(spec(), Beginning(8, last_finite_step=4))
    losses, told = followed([NAN, NAN], first=8, of=diverged)
    assert (losses.last_finite_step, told) == (4, [])
    assert followed([1.0, NAN], first=10, of=losses)[1], "it had recovered"


@pytest.mark.parametrize(
    ("steps", "keep", "last_finite_step", "old"),
    [
        ((2, 4, 6, 8), 2, 7, (2, 4)),
        ((2,), 2, 1, ()),
        # The loss of step 5 was finite, and so were the parameters after 4 steps.
        ((2, 4, 6, 8), 2, 5, (2,)),
        ((2, 4, 6, 8, 10), 1, 5, (2, 6, 8)),
        # The loss of step 6 is not finite: whether parameters are after 6 steps, nobody knows.
        ((6, 8, 10), 1, 5, (8,)),
        ((8, 10), 1, 5, (8,)),
        ((2, 4), 1, -1, (2,)),
        ((4, 6, 8), 5, 5, ()),
    ],
)
def test_which_checkpoints_are_old(
    steps: tuple[int, ...], keep: int, last_finite_step: int, old: tuple[int, ...]
) -> None:
    assert old_checkpoints(steps, keep, last_finite_step) == old
    assert old_checkpoints(steps[::-1], keep, last_finite_step) == old


def saved(of: Job, steps_done: int, last_finite_step: int) -> list[int]:
    """Returns after how many steps those are that are left."""
    of.checkpoints[0].save(steps_done, last_finite_step=last_finite_step)
    return [one.manifest.step for one in checkpoints_in(of.checkpoints[0].folder)]


def test_the_last_good_checkpoint_is_kept_until_losses_are_finite_and_over_a_resume(
    tmp_path: Path,
) -> None:
    first = job(tmp_path, keep=1)
    first.begin()
    assert saved(first, 2, 1) == [2]
    assert saved(first, 4, 3) == [4]
    assert saved(first, 6, 4) == [4, 6]
    assert saved(first, 8, 4) == [4, 8]
    first.checkpoints[0].close()

    second = job(tmp_path, keep=1, steps=20)
    beginning = begin(second.specs[0], second.checkpoints[0], None)
    assert (beginning.step, beginning.last_finite_step) == (8, 4)
    assert beginning.resumed is not None
    (note,) = beginning.resumed.notes
    assert note.startswith("no loss from step 5 to step 7 was finite: to go on from before, end th")
    assert "move its checkpoints after 5 and more steps away" in note
    assert saved(second, 10, 4) == [4, 10]
    assert saved(second, 12, 11) == [12]
    assert changes(manifest(last_finite_step=2), manifest()) == ()


def test_the_first_rank_learns_which_losses_another_computes(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    two = job(tmp_path / "kept", devices=2, keep=1)

    def saving(number: int, group: Any) -> None:
        checkpoints = two.checkpoints[number]
        checkpoints._rank = number
        checkpoints.join(group)
        # The second computes the losses.
        for steps_done, last_finite_step in ((2, 1), (4, 2), (6, 2)):
            known = last_finite_step if number else -1
            checkpoints.save(steps_done, last_finite_step=known)

    together(lambda group: saving(0, group), lambda group: saving(1, group))
    kept = [one.manifest for one in checkpoints_in(tmp_path / "kept")]
    assert [(one.step, one.diverged_from) for one in kept] == [(2, None), (6, 3)]
