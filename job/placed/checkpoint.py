"""Saves and loads checkpoints: each rank handles its own part, in a file of its own.

No rank needs another's part to load its own, so that any placement, and plain PyTorch, can load
what another placement saved. A checkpoint is written under a provisional name and gets its own
name once all of it is on disk: whatever ends the job at whatever moment, the last checkpoint stays
whole. Whoever can write to the folder decides which numbers are trained on; no file of it is run,
and no file elsewhere is read or overwritten.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from placewire.job.contract.checkpoint import (
    LOCK,
    MANIFEST,
    PROBE,
    STAGED,
    Checkpoint,
    CheckpointSpec,
    Manifest,
    checkpoint_path,
    checkpoints_in,
    free_path,
    open_folder,
    remains_in,
    remove,
    sync_folder,
    tensor_file,
    write_new,
)
from placewire.job.contract.checkpoint_look import (
    OTHER_OPTIMIZER,
    OTHER_TRAINED,
    folder_above_missing,
    incomplete,
    not_lockable,
)
from placewire.job.contract.same_job import differences_between, same_computation
from placewire.job.contract.specification import Saved
from placewire.job.errors import JobError
from placewire.job.placed.agreement import failures, said_by_all
from placewire.job.placed.old_checkpoints import old_checkpoints
from placewire.job.placed.saved_tensors import NotSavedError, saved_tensors
from placewire.job.placed.state import RankState
from placewire.job.placed.tensor_file import TensorFileError, require_writable, write_tensors
from placewire.job.placed.told_progress import Tell, ToldProgress

_READABLE = "see that the ranks' user can read job.checkpoint.folder on every server"
_ANOTHER = "move that checkpoint away to resume from the one before, if there is one"
_SAVE_REMEDY = (
    "make room in job.checkpoint.folder, which holds one checkpoint more than `keep` while it "
    "saves, and check its permissions on every server"
)
# So many saves in a row may not fail: what is wrong then stays so.
_FAILED_SAVES = 3

Made = TypeVar("Made")


class SaveFailedError(JobError):
    """A checkpoint could not be saved. All ranks know it, and can go on."""


class Checkpoints:
    """One rank's part in saving and loading. job: the manifest of a checkpoint at step 0. notes:
    sentences for the user, to be taken by whoever reports them.

    The first rank also prepares the folder, gives checkpoints their names and removes old ones.
    Raises JobError where a tensor's type cannot be saved.
    """

    def __init__(self, asked: CheckpointSpec, rank: int, job: Manifest, state: RankState) -> None:
        self.job, self.folder = job, Path(asked.folder)
        self.notes: list[str] = []
        self._told: set[str] = set()
        self._asked, self._rank, self._state = asked, rank, state
        self._group: dist.ProcessGroup | None = None
        self._probe: Path | None = None
        self._lock: int | None = None
        self._failed_saves = 0
        try:
            require_writable(state.to_save(0))
        except TensorFileError as error:
            raise JobError(str(error), "leave job.checkpoint out for this model") from error

    def join(self, group: dist.ProcessGroup) -> None:
        """To be called by all ranks after they have connected; the group saves together."""
        self._group = group
        if self._probe is not None:
            self._probe.unlink(missing_ok=True)

    def make_ready(self) -> str:
        """To be called by the first rank: removes what an ended job left unfinished. Returns the
        name of a file by which the other ranks recognise the folder."""
        try:
            self._make_folder()
            self._take()
            for remains in remains_in(self.folder):
                self._remove(remains)
            probe = self.folder / f"{PROBE}{uuid.uuid4().hex}"
            probe.touch()
        except OSError as error:
            raise JobError(
                f"job.checkpoint.folder {self.folder} cannot be written to: {error.strerror}",
                "give a folder that the ranks' user may write to, on every server",
            ) from error
        self._probe = probe
        return probe.name

    def _make_folder(self) -> None:
        """None above it, which may be where nothing is mounted yet."""
        try:
            self.folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            problem = folder_above_missing(self.folder)
            raise JobError(problem.what, problem.remedy) from error

    def _remove(self, path: Path) -> None:
        """Says where that fails, which ends no training, once for each. Raises OSError where the
        next save needs the name."""
        try:
            remove(path)
        except OSError as error:
            if path.name.startswith(STAGED):
                raise
            why = f"{path} cannot be removed, and stays: {error.strerror or error}"
            if why not in self._told:
                self._told.add(why)
                self.notes.append(why)

    def _take(self) -> None:
        """Locks the folder until close(). The kernel unlocks it however this process ends."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        self._lock = os.open(self.folder / LOCK, flags, 0o600)
        # Whoever may read it could hold the lock. A former release let all read it.
        if os.fstat(self._lock).st_uid == os.geteuid():
            os.fchmod(self._lock, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise JobError(
                f"another job saves its checkpoints in {self.folder}",
                "wait for it to end, or give job.checkpoint another folder; `controller status` "
                "shows ranks whose controller is gone",
            ) from None
        except OSError as error:
            self.close()
            problem = not_lockable(self.folder, error)
            raise JobError(problem.what, problem.remedy) from error

    def take_notes(self) -> tuple[str, ...]:
        taken, self.notes = tuple(self.notes), []
        return taken

    def close(self) -> None:
        """Unlocks the folder for another job."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self, checkpoint: Checkpoint, progress: ToldProgress | None = None) -> None:
        """Overwrites what this rank holds. Raises JobError where a file cannot be loaded."""
        progress = progress or ToldProgress()
        if missing := checkpoint.missing:
            problem = incomplete(checkpoint, missing)
            raise JobError(problem.what, problem.remedy)
        scaled = checkpoint.manifest.scaler is not None
        try:
            with saved_tensors(checkpoint) as saved:
                # All steps may have been skipped.
                updated = not scaled or saved.has_optimizer_state
                steps_done = checkpoint.manifest.step if updated else 0
                saved.load(progress.over(self._state.to_load(steps_done, with_scaler=scaled)))
        except NotSavedError as error:
            raise _without(checkpoint, error) from error
        except TensorFileError as error:
            raise _not_loaded(checkpoint, error, _ANOTHER) from error
        except OSError as error:
            raise _not_loaded(checkpoint, error, _READABLE) from error

    def is_due(self, steps_done: int, steps: int) -> bool:
        return steps_done % self._asked.every == 0 or steps_done == steps

    def try_to_save(
        self, steps_done: int, steps: int, tell: Tell, last_finite_step: int
    ) -> Saved | None:
        """Saves as save() does; where that fails, notes it, and returns None. steps: of the job.
        Raises JobError on all ranks where the job's last save fails, or the third in a row."""
        try:
            saved = self.save(steps_done, tell, last_finite_step)
        except SaveFailedError as error:
            self._failed_saves += 1
            if steps_done == steps:
                raise
            if self._failed_saves == _FAILED_SAVES:
                what = f"{_FAILED_SAVES} saves in a row failed; {error.what}"
                raise JobError(what, error.remedy) from error
            if not self._rank:
                left = _FAILED_SAVES - self._failed_saves
                more = "the next save fails" if left == 1 else f"the next {left} saves fail"
                self.notes.append(
                    f"{error.what}. The training goes on; {error.remedy}. The job ends where "
                    f"{more}, or its last one does"
                )
            return None
        self._failed_saves = 0
        return saved

    def save(
        self,
        steps_done: int,
        tell: Tell = lambda text: None,
        last_finite_step: int | None = None,
    ) -> Saved | None:
        """To be called by all ranks at once. Returns the event, on the first rank only. tell: gets
        a sentence every minute in which this rank has written more. last_finite_step: the last
        whose loss was finite as far as this rank knows; None: the last one. Raises SaveFailedError
        on all ranks where one failed; what they wrote is then removed."""
        began = time.monotonic()
        finite = steps_done - 1 if last_finite_step is None else last_finite_step
        # Another rank may compute the loss, and each bucket's may be another one's.
        finite = max(map(int, said_by_all(self._group, str(finite))))
        staged = checkpoint_path(self.folder, STAGED, steps_done)
        is_first = not self._rank
        self._together(lambda: staged.mkdir() if is_first else None, steps_done)
        try:
            self._together(lambda: self._write(staged, steps_done, tell), steps_done)
            made = self._together(
                lambda: self._finish(staged, steps_done, finite) if is_first else None, steps_done
            )
        except SaveFailedError:
            if is_first:
                self._discard(staged)
            raise
        if made is None:
            return None
        whole, size = made
        self._remove_old(whole, steps_done, finite)
        return Saved(
            rank=self._rank,
            step=steps_done,
            path=str(whole),
            bytes=size,
            seconds=time.monotonic() - began,
        )

    def _together(self, act: Callable[[], Made], steps_done: int) -> Made | None:
        """Acts, and returns what that gave when all ranks have acted. Raises SaveFailedError on all
        where one failed."""
        made, own = None, ""
        try:
            made = act()
        except OSError as error:
            own = f"{error} ({self._free()})"
        if failed := failures(self._group, own):
            told = "; ".join(f"rank {rank}: {why}" for rank, why in failed.items())
            what = f"the checkpoint after step {steps_done} cannot be saved: {told}"
            raise SaveFailedError(what, _SAVE_REMEDY)
        return made

    def _free(self) -> str:
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            return f"{self.folder}: {error.strerror}"
        return f"{free / 2**20:.1f} MiB are free in {self.folder}"

    def _discard(self, staged: Path) -> None:
        """Leaves nothing of a save that failed: the next one needs the room."""
        try:
            remove(staged)
        except FileNotFoundError:
            return  # It has its own name, and what failed came after that.
        except OSError as error:
            self.notes.append(f"{staged} cannot be removed, and stays: {error.strerror or error}")

    def _write(self, staged: Path, steps_done: int, tell: Tell) -> None:
        whole = f"of the checkpoint after {steps_done} steps"
        progress = ToldProgress(lambda size: tell(f"{whole} {size} are written so far"))
        if self._rank:
            # It is there, unless the folder is not shared; then the first rank says what it misses.
            staged.mkdir(exist_ok=True)
        folder = open_folder(staged)
        try:
            tensors = self._state.to_save(steps_done)
            write_tensors(folder, tensor_file(self._rank), tensors, progress.reached)
        finally:
            os.close(folder)

    def _finish(self, staged: Path, steps_done: int, last_finite_step: int) -> tuple[Path, int]:
        """Makes the checkpoint whole. Returns its path and its bytes."""
        ranks = 1 if self._group is None else self._group.size()
        names = [tensor_file(rank) for rank in range(ranks)]
        if missing := [name for name in names if not (staged / name).is_file()]:
            raise OSError(
                f"{', '.join(missing)} is not in {staged} on the first rank's server: "
                "the folder must be the same on every server"
            )
        files = {name: (staged / name).lstat().st_size for name in names}
        saved = {"step": steps_done, "files": files, "last_finite_step": last_finite_step}
        manifest = self.job.model_copy(update=saved)
        folder = open_folder(staged)
        try:
            write_new(folder, MANIFEST, manifest.model_dump_json(indent=1) + "\n")
            os.fsync(folder)
        finally:
            os.close(folder)
        whole = free_path(self.folder, steps_done)
        staged.rename(whole)
        sync_folder(self.folder)
        return whole, sum(files.values())

    def _remove_old(self, newest: Path, steps_done: int, last_finite_step: int) -> None:
        """Removes whole checkpoints of this job alone, and never the newest. The checkpoint is
        saved: that old ones stay ends no training."""
        try:
            found = checkpoints_in(self.folder)
        except OSError as error:
            self.notes.append(f"old checkpoints stay: {error}")
            return
        own = {
            Path(one.path): one.manifest.step
            for one in found
            if not one.missing
            # In another cut nobody can tell whether the computation was the same.
            and same_computation(one.manifest, self.job)
            and not differences_between(one.manifest, self.job)
        }
        own.pop(newest, None)
        steps = [*own.values(), steps_done]
        old = old_checkpoints(steps, self._asked.keep, last_finite_step)
        for path, step in own.items():
            if step in old:
                self._remove(path)


def _not_loaded(checkpoint: Checkpoint, why: object, remedy: str) -> JobError:
    return JobError(f"checkpoint {checkpoint.path} cannot be loaded: {why}", remedy)


def _without(checkpoint: Checkpoint, error: NotSavedError) -> JobError:
    if error.state_of is None:
        return _not_loaded(checkpoint, error, _ANOTHER)
    optimizer, parameter = error.state_of
    groups = checkpoint.manifest.param_groups
    if groups and not any(parameter in one["params"] for one in groups.get(optimizer, ())):
        why = f"{parameter} was not trained when it was saved, and is now: {error}"
        return _not_loaded(checkpoint, why, OTHER_TRAINED)
    settings = checkpoint.manifest.optimizer_settings
    why = f"{error}: the optimizer that it was saved with, {settings}, keeps none"
    return _not_loaded(checkpoint, why, OTHER_OPTIMIZER)
