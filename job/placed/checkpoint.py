"""Saves and loads checkpoints through torch.distributed.checkpoint: each rank handles its own part.

No rank needs another's part to load its own, so that any placement, and plain PyTorch, can load
what another placement saved. A checkpoint is written under a provisional name and gets its own
name once all of it is on disk: whatever ends the job at whatever moment, the last checkpoint stays
whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from placewire.job.contract.checkpoint import (
    LEAVING,
    LOCK,
    MANIFEST,
    PROBE,
    STAGED,
    WHOLE,
    Checkpoint,
    CheckpointSpec,
    Manifest,
    checkpoint_path,
    checkpoints_in,
    remains_in,
    sync_folder,
    write_durably,
)
from placewire.job.contract.specification import Saved
from placewire.job.errors import JobError
from placewire.job.placed.state import RankState


class Checkpoints:
    """One rank's part in saving and loading. job: the manifest of a checkpoint at step 0.

    The first rank also prepares the folder, gives checkpoints their names and removes old ones.
    """

    def __init__(self, asked: CheckpointSpec, rank: int, job: Manifest, state: RankState) -> None:
        self.job, self.folder = job, Path(asked.folder)
        self._asked, self._rank, self._state = asked, rank, state
        self._group: dist.ProcessGroup | None = None
        self._probe: Path | None = None
        self._lock: int | None = None

    def join(self, group: dist.ProcessGroup) -> None:
        """To be called by all ranks after they have connected; the group saves together."""
        self._group = group
        if self._probe is not None:
            self._probe.unlink(missing_ok=True)

    def make_ready(self) -> str:
        """To be called by the first rank: removes what an ended job left unfinished. Returns the
        name of a file by which the other ranks recognise the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take()
            for remains in remains_in(self.folder):
                _remove(remains)
            probe = self.folder / f"{PROBE}{uuid.uuid4().hex}"
            probe.touch()
        except OSError as error:
            raise JobError(
                f"job.checkpoint.folder {self.folder} cannot be written to: {error.strerror}",
                "give a folder that the ranks' user may write to, on every server",
            ) from error
        self._probe = probe
        return probe.name

    def _take(self) -> None:
        """Locks the folder until close(). The kernel unlocks it however this process ends."""
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise JobError(
                f"another job saves its checkpoints in {self.folder}",
                "wait for it to end, or give job.checkpoint another folder; `controller status` "
                "shows ranks whose controller is gone",
            ) from None

    def close(self) -> None:
        """Unlocks the folder for another job."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self, checkpoint: Checkpoint) -> None:
        """Overwrites what this rank holds. Raises JobError where a file cannot be loaded."""
        if missing := checkpoint.missing:
            raise JobError(
                f"checkpoint {checkpoint.path} lacks {', '.join(missing)}",
                "every rank wrote a file of its own: put all of them into that folder, or move "
                "the checkpoint away to resume from the previous one",
            )
        tree = self._state.to_load(checkpoint.manifest.step)
        with _as_job_error(f"checkpoint {checkpoint.path} cannot be loaded"):
            load(tree, checkpoint_id=checkpoint.path, no_dist=True)

    def is_due(self, steps_done: int, steps: int) -> bool:
        return steps_done % self._asked.every == 0 or steps_done == steps

    def save(self, steps_done: int) -> Saved | None:
        """To be called by all ranks at once. Returns the event, on the first rank only."""
        began = time.monotonic()
        staged = checkpoint_path(self.folder, STAGED, steps_done)
        with _as_job_error(f"the checkpoint after step {steps_done} cannot be saved"):
            metadata = save(
                self._state.to_save(steps_done),
                storage_writer=FileSystemWriter(staged),
                process_group=self._group,
                no_dist=self._group is None,
            )
            if self._rank:
                return None
            parts = {entry.relative_path for entry in metadata.storage_data.values()}
            whole, size = self._finish(staged, steps_done, parts)
        return Saved(
            rank=self._rank,
            step=steps_done,
            path=str(whole),
            bytes=size,
            seconds=time.monotonic() - began,
        )

    def _finish(self, staged: Path, steps_done: int, parts: set[str]) -> tuple[Path, int]:
        """Makes the checkpoint whole and removes old ones. Returns its path and its bytes."""
        files = {file.name: file.stat().st_size for file in sorted(staged.iterdir())}
        if missing := parts - files.keys():
            raise OSError(
                f"{', '.join(sorted(missing))} is not in {staged} on the first rank's server: "
                "the folder must be the same on every server"
            )
        manifest = self.job.model_copy(update={"step": steps_done, "files": files})
        write_durably(staged / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        sync_folder(staged)
        whole = checkpoint_path(self.folder, WHOLE, steps_done)
        staged.rename(whole)
        sync_folder(self.folder)
        for old in checkpoints_in(self.folder)[: -self._asked.keep]:
            leaving = checkpoint_path(self.folder, LEAVING, old.manifest.step)
            Path(old.path).rename(leaving)
            _remove(leaving)
        return whole, sum(files.values())


@contextlib.contextmanager
def _as_job_error(what: str) -> Iterator[None]:
    """Raises JobError for torch's CheckpointException, which is no Exception, and for OSError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a rank that saves without a process group
            yield
    except CheckpointException as error:
        reasons = [f"rank {rank}: {why}" for rank, (why, _) in sorted(error.failures.items())]
        raise JobError(f"{what}: {'; '.join(reasons)}", _REMEDY) from error
    except OSError as error:
        raise JobError(f"{what}: {error}", _REMEDY) from error


_REMEDY = "check free space and permissions of job.checkpoint.folder on every server"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
