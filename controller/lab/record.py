"""The record of a lab: what it makes, written to disk first; all that `lab down` knows.

    /run/placewire/lab/NAME/lab.json      this record
                           /controller/   certificates, journal and cache of the controller
                           /SERVER/       ovs/, agent/, certificates/, agent.json, agent.log

/run does not outlive a reboot, and neither does anything that a lab makes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from placewire.controller.errors import PlacewireError
from placewire.frozen import Frozen

LAB_ROOT = Path("/run/placewire/lab")
_FILE = "lab.json"


class ProcessRecord(Frozen):
    """A daemon of the lab. start_ticks (field 22 of /proc/PID/stat) tells a reused pid apart."""

    pid: int
    start_ticks: int
    argv: tuple[str, ...]


class SysctlRecord(Frozen):
    """A machine-wide value that a lab sets for a moment; put back only where it is still `ours`."""

    path: str
    before: str
    ours: str


class ServerRecord(Frozen):
    name: str
    namespace: str
    management_address: str


class LabRecord(Frozen):
    """complete: whether `lab up` came to its end."""

    version: int = 1
    name: str
    servers: tuple[ServerRecord, ...]
    controller_namespace: str
    controller_address: str
    namespaces: tuple[str, ...]
    processes: tuple[ProcessRecord, ...] = ()
    sysctls: tuple[SysctlRecord, ...] = ()
    complete: bool = False


def directory_of(name: str) -> Path:
    return LAB_ROOT / name


def recorded_names() -> list[str]:
    """Returns the names of all labs on this machine, half-made ones too, in order."""
    return sorted(path.name for path in LAB_ROOT.iterdir()) if LAB_ROOT.is_dir() else []


def load(name: str) -> LabRecord | None:
    """Raises PlacewireError where another version made the lab."""
    file = directory_of(name) / _FILE
    try:
        return LabRecord.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise PlacewireError(
            f"this version of Placewire cannot read this record: {error.errors()[0]['msg']}",
            where=str(file),
            remedy=f"`controller lab down {name}` of the version that made the lab removes it",
        ) from error


class Recorder:
    """Keeps a lab's record on disk. Threads must not share a Recorder."""

    def __init__(self, record: LabRecord) -> None:
        self.record = record
        directory_of(record.name).mkdir(exist_ok=True)
        self._save()

    def update(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        self._save()

    def add_process(self, process: ProcessRecord) -> None:
        self.update(processes=(*self.record.processes, process))

    def _save(self) -> None:
        """Writes the record whole or not at all; it is on disk when this returns."""
        folder = directory_of(self.record.name)
        fresh = folder / f"{_FILE}.new"
        with fresh.open("w", encoding="utf-8") as file:
            file.write(self.record.model_dump_json(indent=2))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / _FILE)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Lets one `lab up` or `lab down` run at a time on this machine: they share a sysctl.

    The lock is on the folder of all labs, which is removed with the last lab.
    """
    while True:
        try:
            LAB_ROOT.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(LAB_ROOT, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # the holder of the lock has just removed the folder
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if LAB_ROOT.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)  # the holder removed the folder while this process waited
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: another lab is up
            LAB_ROOT.rmdir()
            LAB_ROOT.parent.rmdir()
        os.close(descriptor)
