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
import stat
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from placewire.controller.errors import PlacewireError
from placewire.frozen import Frozen

LAB_ROOT = Path("/run/placewire/lab")
_FILE = "lab.json"
_LOCK = ".lock"


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


class NicRecord(Frozen):
    """A NIC of a lab's server, with what its line carries. rail, address: with its prefix; None
    where a release made the lab that did not record them."""

    name: str
    bits_per_second: float
    mtu_bytes: int
    rail: str | None = None
    address: str | None = None


class ServerRecord(Frozen):
    """nics: none where a release made the lab that did not record them."""

    name: str
    namespace: str
    management_address: str
    nics: tuple[NicRecord, ...] = ()


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
    there = (path.name for path in LAB_ROOT.iterdir()) if LAB_ROOT.is_dir() else ()
    return sorted(name for name in there if name != _LOCK)


def load(name: str) -> LabRecord | None:
    """Raises PlacewireError where another version made the lab, or another user what is there."""
    file = directory_of(name) / _FILE
    try:
        file.lstat()
    except (FileNotFoundError, PermissionError):  # Who cannot look there is not in a lab.
        return None
    _require_own(LAB_ROOT.parent, LAB_ROOT, file.parent, file)
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


def _require_own(*paths: Path) -> None:
    """Root enters namespaces, writes files and ends processes by a record. Raises PlacewireError
    where another user could have made it."""
    for path in paths:
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
            raise PlacewireError(
                "other users than root can write there, so what it says of a lab is not obeyed",
                where=str(path),
                remedy="look who put it there, and remove it (an earlier release gave "
                f"/run/placewire to the agent's user: `chown root: {LAB_ROOT.parent}`); until then "
                "give --no-lab",
            )


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

    The lock is on a file that nobody else can open, which goes with the last lab.
    """
    while True:
        for folder in (LAB_ROOT.parent, LAB_ROOT):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            _require_own(folder)
        lock = LAB_ROOT / _LOCK
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the holder of the lock has just removed the folder
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if lock.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)  # the holder removed the file while this process waited
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: another lab is up, or coming up
            if not recorded_names():
                lock.unlink()
            LAB_ROOT.rmdir()
            LAB_ROOT.parent.rmdir()
        os.close(descriptor)
