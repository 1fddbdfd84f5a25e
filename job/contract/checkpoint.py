"""Checkpoints of a placed job: their settings, their manifest, and the layout of their folder.

    FOLDER/step-00000300/placewire.json   the manifest: which job, which step, which files
    FOLDER/step-00000300/.metadata, …     written by torch.distributed.checkpoint
    FOLDER/saving-00000400/               being saved, or left unfinished by an ended job

A checkpoint is renamed to `step-…` once all of its files are on disk, so that every folder of that
name is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from placewire.frozen import Frozen

MANIFEST = "placewire.json"
LOCK = "in-use"
# Prefixes of the folders of checkpoints, by their state.
WHOLE = "step-"
STAGED = "saving-"
LEAVING = "removing-"
# Prefix of a file by which ranks check that they see the same folder.
PROBE = "seen-"

Resume = Literal["auto", "never", "required"]


class CheckpointError(ValueError):
    """A checkpoint cannot be used; what: the reason and the place; remedy: what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class CheckpointSpec(Frozen):
    """folder: absolute, and the same folder on every server of the job. every: steps from one
    checkpoint to the next; the last step is followed by one too. keep: how many are kept."""

    folder: str
    every: int
    keep: int = 2
    resume: Resume = "auto"


class Manifest(Frozen):
    """step: how many steps are done, which is also the number of the next step. tensors: type and
    shape of each saved tensor of the model, by name. files: sizes in bytes, by name."""

    version: Literal[1] = 1
    step: int
    structure_hash: str
    model: str
    batch: int
    seed: int
    optimizer: str
    optimizer_settings: str
    devices: tuple[str, ...]
    torch: str
    tensors: Mapping[str, str]
    files: Mapping[str, int]


class Checkpoint(Frozen):
    path: str
    manifest: Manifest

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the files that do not exist, or have not the size that they had."""
        return tuple(
            name
            for name, size in self.manifest.files.items()
            if not (file := Path(self.path, name)).is_file() or file.stat().st_size != size
        )


def checkpoints_in(folder: Path) -> tuple[Checkpoint, ...]:
    """Returns the whole checkpoints, smallest step first. Raises CheckpointError where a manifest
    cannot be read, OSError where the folder cannot."""
    if not folder.exists():
        return ()
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(WHOLE))
    return tuple(_read(folder / name) for name in names)


def checkpoint_path(folder: Path, state: str, step: int) -> Path:
    """state: WHOLE, STAGED, or LEAVING for a checkpoint that is being removed."""
    return folder / f"{state}{step:08d}"


def remains_in(folder: Path) -> Iterator[Path]:
    """Yields what a job left behind that ended in the middle of saving or removing."""
    unfinished = (STAGED, LEAVING, PROBE)
    yield from (e for e in sorted(folder.iterdir()) if e.name.startswith(unfinished))


def write_durably(file: Path, text: str) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Writes the folder's names to disk, which syncing its files does not do."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> Checkpoint:
    try:
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint of this version: {error}",
            "move it out of the folder, or give job.checkpoint another folder",
        ) from error
    return Checkpoint(path=str(path), manifest=manifest)
