"""A save that fails leaves nothing, is told, and ends no training, unless it is the last one or the
third in a row."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.checkpoint import CheckpointSpec, checkpoints_in
from placewire.job.contract.specification import Failed, Noted, Saved
from placewire.job.errors import JobError
from tests.job.ranks import LONGEST_SECONDS, end, run_ranks, start_ranks
from tests.job.test_checkpoint import (
    ADAMW,
    HARD,
    Job,
    captured_step,
    job,
    one_thread,  # noqa: F401 - a fixture
    spread,
    together,
)

EVERY = 2


def in_the_way(folder: Path, *steps: int) -> None:
    """A file of others that has the name which a save of these steps needs."""
    folder.mkdir(exist_ok=True)
    for step in steps:
        (folder / f"saving-{step:08d}").write_text("theirs")


def saving(of: Job, steps_done: int, steps: int) -> Saved | None:
    return of.checkpoints[0].try_to_save(steps_done, steps, lambda text: None, steps_done - 1)


def test_the_next_save_succeeds(tmp_path: Path) -> None:
    in_the_way(tmp_path, 2)
    one = job(tmp_path)
    one.begin()
    assert saving(one, 2, 9) is None
    (told,) = one.checkpoints[0].take_notes()
    assert told.startswith("the checkpoint after step 2 cannot be saved: rank 0: [Errno 17] File ")
    for words in (
        f" are free in {tmp_path})", "The training goes on; make room in job.checkpoint.folder",
        "where the next 2 saves fail, or its last one does",
    ):  # fmt: skip
        assert words in told
    assert saving(one, 4, 9) is not None and one.checkpoints[0].take_notes() == ()
    assert [checkpoint.manifest.step for checkpoint in checkpoints_in(tmp_path)] == [4]
    assert (tmp_path / "saving-00000002").read_text() == "theirs"


def test_three_in_a_row_and_the_last_one_end_the_job(tmp_path: Path) -> None:
    in_the_way(tmp_path, 2, 4, 8, 10, 12, 16)
    one = job(tmp_path)
    one.begin()
    assert [saving(one, k, 99) is None for k in (2, 4, 6, 8, 10)] == [True, True, False, True, True]
    assert "where the next save fails, or" in one.checkpoints[0].take_notes()[-1]
    with pytest.raises(JobError, match="3 saves in a row failed; the checkpoint after step 12 can"):
        saving(one, 12, 99)
    other = job(tmp_path / "other")
    other.begin()
    in_the_way(tmp_path / "other", 16)
    with pytest.raises(JobError, match="the checkpoint after step 16 cannot be saved"):
        saving(other, 16, 16)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system on which two checkpoints of the model have room, and not three."""
    size = "size=256k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "placewire-test", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.mark.network
def test_what_a_full_disk_has_of_a_save_is_removed(small_disk: Path) -> None:
    one = job(small_disk / "kept")
    one.begin()
    assert saving(one, 2, 9) is not None
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 8192))
    assert saving(one, 4, 9) is None
    (told,) = one.checkpoints[0].take_notes()
    assert "No space left on device" in told and " are free in " in told
    assert sorted(path.name for path in (small_disk / "kept").iterdir() if path.is_dir()) == [
        "step-00000002"
    ]
    filler.unlink()
    assert saving(one, 6, 9) is not None
    assert [c.manifest.step for c in checkpoints_in(small_disk / "kept")] == [2, 6]


def test_all_ranks_go_on_and_all_end(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    in_the_way(folder, 2, 6, 8, 10)
    two = job(folder, devices=2)

    def rank(number: int, group: Any) -> list[bool]:
        checkpoints = two.checkpoints[number]
        checkpoints._rank = number
        checkpoints.join(group)
        for steps_done in (2, 4, 6, 8, 10):
            checkpoints.try_to_save(steps_done, 99, lambda text: None, steps_done - 1)
        raise AssertionError("three in a row failed")

    errors = together(partial(rank, 0), partial(rank, 1))
    assert str(errors[0]) == str(errors[1]) and "3 saves in a row failed" in str(errors[0])
    assert [one.manifest.step for one in checkpoints_in(folder)] == [4]
    assert len(two.checkpoints[0].take_notes()) == 3 and two.checkpoints[1].take_notes() == ()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_real_ranks_train_on(tmp_path: Path, devices: int) -> None:
    kept = tmp_path / "kept"
    options: dict[str, Any] = {
        "kind": "placed", "model": HARD, "batch": 4, "seed": 3, "optimizer": ADAMW,
        "checkpoint": CheckpointSpec(folder=str(kept), every=EVERY),
    }  # fmt: skip
    placement = spread(captured_step(HARD, 4, 3, ADAMW), devices)
    in_the_way(kept, 2)
    ranks = run_ranks(placement, tmp_path / "goes on", steps=5, **options)
    saved = [event.step for rank in ranks for event in rank.events if isinstance(event, Saved)]
    assert saved == [4, 5]
    notes = [n for rank in ranks for e in rank.events if isinstance(e, Noted) for n in e.notes]
    assert len([note for note in notes if "after step 2 cannot be saved" in note]) == 1

    in_the_way(kept, 6, 8, 10)
    ranks = start_ranks(placement, tmp_path / "ends", steps=99, **options)
    try:
        assert {rank.finish(LONGEST_SECONDS) for rank in ranks} == {1}
    finally:
        end(ranks)
    failed = [event for rank in ranks for event in rank.events if isinstance(event, Failed)]
    assert any("3 saves in a row failed; the checkpoint after step 10" in e.what for e in failed)
