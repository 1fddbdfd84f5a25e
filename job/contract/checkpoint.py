"""Checkpoints of a placed job: their settings, their manifest, and the layout of their folder.

    FOLDER/step-00000300/placewire.json      the manifest: which job, which step, which files
    FOLDER/step-00000300/rank0.safetensors   the tensors of rank 0 (job/placed/tensor_file.py)
    FOLDER/saving-00000400/                  being saved, or left unfinished by an ended job
    FOLDER/removing-00000100-<32 digits>/    being removed; it stays where others put files into it

A checkpoint is renamed to `step-…` once all of its files are on disk, so that every folder of that
name is whole. Others may have folders of such names, too: ours have a manifest. Whoever may write
to the folder decides what is in it: all of it is read as data, with checked lengths, and nothing in
it can name a file elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, ValidationError

from placewire.frozen import Frozen, place_of
from placewire.job.contract.job_identity import JobIdentity

MANIFEST = "placewire.json"
LOCK = "in-use"
VERSION = 2
# Prefixes of the folders of checkpoints, by their state.
WHOLE = "step-"
STAGED = "saving-"
LEAVING = "removing-"
# Prefix of a file by which ranks check that they see the same folder.
PROBE = "seen-"
_FOLDER = re.compile(r"(step|saving)-([0-9]{8,18})|removing-[0-9]{8,18}(-[0-9a-f]{32})?")
_PROBE = re.compile(PROBE + "[0-9a-f]{32}")
_TENSORS = re.compile(r"rank(0|[1-9][0-9]{0,8})\.safetensors")
# The files of a checkpoint, those of version 1 among them.
_OURS = re.compile(
    rf"{re.escape(MANIFEST)}|{_TENSORS.pattern}|\.metadata(\.tmp)?|__[0-9]+_[0-9]+\.distcp"
)
_LARGEST_MANIFEST_BYTES = 64 * 1024 * 1024
# A value takes up to a hundred times the memory that its text takes. A tensor has some ten of them;
# the controller, too, reads all manifests of a folder.
MOST_VALUES = 2_000_000
_MOST_VALUES_OF_ALL = 10_000_000

Resume = Literal["auto", "never", "required", "changed"]


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


def _tensor_file_name(name: str) -> str:
    if not _TENSORS.fullmatch(name):
        raise ValueError(
            f"{name[:100]!r} is no name of a checkpoint's file, like rank0.safetensors"
        )
    return name


TensorFileName = Annotated[str, AfterValidator(_tensor_file_name)]


class Manifest(JobIdentity):
    """step: how many steps are done, which is also the number of the next step. files: sizes in
    bytes, by name. param_groups: by the optimizer's name in the checkpoint, its entries as in
    torch's Optimizer.param_groups. scaler: what torch's GradScaler.state_dict() has beside the
    scaler's tensors; None without one. last_finite_step: the number of the last step whose loss was
    finite, -1 where none was. A former release's has no computation_hash, accumulate, shards and
    last_finite_step."""

    version: Literal[2] = 2
    step: int
    structure_hash: str
    optimizer_settings: str
    devices: tuple[str, ...]
    torch: str
    tensors: Mapping[str, str]
    files: Mapping[TensorFileName, int]
    param_groups: Mapping[str, tuple[Mapping[str, Any], ...]] = {}
    scaler: Mapping[str, int | float] | None = None
    last_finite_step: int | None = None

    @property
    def diverged_from(self) -> int | None:
        """The first of the last steps whose losses were not finite; None where the last one's was,
        or nothing is known of that."""
        if self.last_finite_step is None or self.last_finite_step >= self.step - 1:
            return None
        return self.last_finite_step + 1


class Checkpoint(Frozen):
    path: str
    manifest: Manifest

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the files that do not exist, or have not the size that they had."""
        return tuple(
            name
            for name, size in self.manifest.files.items()
            if not _is_file_of(Path(self.path, name), size)
        )


class Unusable(NamedTuple):
    """A folder with a checkpoint's name that cannot be used. why: the reason and the place.
    is_ours: whether it has a manifest, which may be damaged, or another version's."""

    path: Path
    why: CheckpointError
    is_ours: bool


class Listing(NamedTuple):
    """What a folder has under checkpoints' names; both smallest step first."""

    checkpoints: tuple[Checkpoint, ...]
    unusable: tuple[Unusable, ...]


def tensor_file(rank: int) -> str:
    """Returns the name of the file with that rank's tensors."""
    return f"rank{rank}.safetensors"


def checkpoints_in(folder: Path) -> tuple[Checkpoint, ...]:
    """Returns the whole checkpoints, of whatever job, smallest step first. Raises OSError where the
    folder cannot be read."""
    return listed_in(folder).checkpoints


def is_whole_name(name: object) -> bool:
    """Whether it is the name of a whole checkpoint's folder, and so leads nowhere else."""
    return isinstance(name, str) and name.startswith(WHOLE) and _FOLDER.fullmatch(name) is not None


def is_probe_name(name: object) -> bool:
    return isinstance(name, str) and _PROBE.fullmatch(name) is not None


def listed_in(folder: Path) -> Listing:
    """Raises OSError where the folder cannot be read."""
    if not folder.exists():
        return Listing((), ())
    found = [
        (int(name[2]), entry)
        for entry in folder.iterdir()
        if is_whole_name(entry.name) and (name := _FOLDER.fullmatch(entry.name))
    ]
    usable, unusable = list[Checkpoint](), list[Unusable]()
    room = _MOST_VALUES_OF_ALL
    for step, path in sorted(found, reverse=True):  # What is too much are the oldest.
        try:
            checkpoint, values = _of_step(path, step, min(room, MOST_VALUES))
            usable.append(checkpoint)
            room -= values
        except CheckpointError as error:
            unusable.append(Unusable(path, error, _has_manifest(path)))
    return Listing(tuple(reversed(usable)), tuple(reversed(unusable)))


def checkpoint_at(path: Path) -> Checkpoint:
    """Raises CheckpointError where this folder is no checkpoint of this version."""
    return _read(path, MOST_VALUES)[0]


def values_in(document: bytes) -> int:
    """Returns no fewer than a JSON document has, without reading it: a value follows a comma
    or a bracket, or is the first."""
    return 1 + sum(document.count(mark) for mark in (b",", b"[", b"{"))


def _read(path: Path, most_values: int) -> tuple[Checkpoint, int]:
    """Returns (the checkpoint, how many values its manifest has). Raises CheckpointError."""
    try:
        with os.fdopen(open_file(path / MANIFEST), "rb") as stream:
            text = stream.read(_LARGEST_MANIFEST_BYTES + 1)
    except OSError as error:
        raise _unusable(path, f"{MANIFEST}: {error.strerror or error}") from error
    if len(text) > _LARGEST_MANIFEST_BYTES:
        raise _unusable(path, f"{MANIFEST} is larger than {_LARGEST_MANIFEST_BYTES} bytes")
    if (values := values_in(text)) > most_values:
        raise _unusable(
            path, f"{MANIFEST} has up to {values} JSON values; there is room for {most_values}"
        )
    if _version_of(text) == 1:
        raise CheckpointError(
            f"{path} has version 1 of the format, which holds a pickle (.metadata): to load it "
            "would run what whoever can write to the folder put into it",
            "convert it, where you trust everybody who could write there (docs/how-to/upgrade.md), "
            "or give job.checkpoint another folder",
        )
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = place_of(first["loc"])
        why = f"{MANIFEST}: {place}: {first['msg']}" if place else f"{MANIFEST}: {first['msg']}"
        raise _unusable(path, why) from error
    return Checkpoint(path=str(path), manifest=manifest), values


def checkpoint_path(folder: Path, state: str, step: int) -> Path:
    """state: WHOLE or STAGED."""
    return folder / f"{state}{step:08d}"


def free_path(folder: Path, step: int) -> Path:
    """Returns a place for a whole checkpoint: the usual one, or one with more zeros where somebody
    else's is in the way. Raises OSError where there is none."""
    for digits in range(8, 19):
        path = folder / f"{WHOLE}{step:0{digits}d}"
        if not os.path.lexists(path):
            return path
    raise OSError(f"{folder} has all names of a checkpoint after {step} steps already")


def remains_in(folder: Path) -> Iterator[Path]:
    """Yields what a job left behind that ended in the middle of saving or removing: folders, and
    probes, which are files."""
    for entry in sorted(folder.iterdir()):
        name = entry.name
        left = bool(_FOLDER.fullmatch(name)) and not name.startswith(WHOLE) and entry.is_dir()
        if left or _PROBE.fullmatch(name):
            yield entry


def remove(path: Path) -> None:
    """Removes a checkpoint's folder, or a probe. What somebody else put into the folder stays, and
    the folder with it, under a name that no later checkpoint needs; so does a symbolic link in its
    place. Raises OSError."""
    if path.name.startswith((WHOLE, STAGED)):
        step = path.name.partition("-")[2]
        path = path.rename(path.with_name(f"{LEAVING}{step}-{uuid.uuid4().hex}"))
    if path.is_symlink():
        return
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    descriptor = open_folder(path)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries if _OURS.fullmatch(entry.name)]
        for name in names:
            os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    with suppress(OSError):  # it is not empty
        path.rmdir()


def open_folder(folder: Path) -> int:
    """Opens a folder, to reach files in it and nowhere else. Raises OSError for a symbolic link."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def open_file(file: Path) -> int:
    """Opens an ordinary file to be read. Raises OSError for anything else, a symbolic link and a
    named pipe among them."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is no ordinary file")
    return descriptor


def write_new(folder: int, name: str, text: str) -> None:
    """Writes a file that does not exist yet, and brings it to disk. folder: of open_folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "w", encoding="utf-8") as stream:
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


def _is_file_of(file: Path, size_bytes: int) -> bool:
    try:
        found = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes


def _has_manifest(path: Path) -> bool:
    try:
        return stat.S_ISREG((path / MANIFEST).lstat().st_mode)
    except OSError:  # there is none, or it is not for us to see
        return False


def _of_step(path: Path, step: int, most_values: int) -> tuple[Checkpoint, int]:
    found, values = _read(path, most_values)
    if found.manifest.step != step:
        raise _unusable(path, f"{MANIFEST} says that it is after {found.manifest.step} steps")
    return found, values


def _unusable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read as a checkpoint: {why}",
        "move it out of the folder, or give job.checkpoint another folder",
    )


def _version_of(text: bytes) -> object:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document.get("version") if isinstance(document, dict) else None
