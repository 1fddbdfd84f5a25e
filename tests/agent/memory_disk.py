"""A disk in memory under placewire.agent.store.DiskStore, which can be full, fail, or lose power.

A write is in the page cache until the file is synced, a name until its directory is synced. After a
power cut, what was not synced may be lost, or half there; a killed process loses only its own
buffers. MemoryPath stands in for the few things of pathlib and os that the store uses.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from placewire.agent import store
from tests.agent.faults import Fault, Place, Striker


class Inode:
    def __init__(self) -> None:
        self.data = b""
        self.synced = b""


class MemoryDisk:
    def __init__(self, striker: Striker) -> None:
        self.striker = striker
        self._names: dict[str, Inode] = {}
        # The names that may be there after a power cut, oldest first; the first is certain.
        self._histories: list[dict[str, Inode]] = [{}]
        self.is_full = False

    @property
    def root(self) -> MemoryPath:
        return MemoryPath(self, "")

    def at(self, what: str) -> Fault | None:
        struck = self.striker.at(Place.DISK, what)
        return Fault.DISK_FULL if self.is_full else struck

    def find(self, name: str) -> Inode:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._names[name]

    def has(self, name: str) -> bool:
        return name in self._names

    def create(self, name: str) -> Inode:
        if name not in self._names:
            self._change({**self._names, name: Inode()})
        return self._names[name]

    def rename(self, former: str, name: str) -> None:
        rest = {n: inode for n, inode in self._names.items() if n != former}
        self._change({**rest, name: self.find(former)})

    def sync_names(self) -> None:
        self._histories = [self._names]

    def damage(self, name: str, change: Callable[[bytes], bytes] | None) -> bool:
        """Changes what is in a file, as a failing disk or an administrator does, or loses the file
        (change None). Returns False where there is no such file."""
        if name not in self._names:
            return False
        if change is None:
            self._names = {n: inode for n, inode in self._names.items() if n != name}
            self._histories = [self._names]
            return True
        inode = self._names[name]
        inode.data = inode.synced = change(inode.data)
        return True

    def cut_power(self, rng: random.Random) -> None:
        self._names = dict(rng.choice(self._histories))
        for inode in self._names.values():
            if inode.data != inode.synced:
                begun = inode.data if inode.data.startswith(inode.synced) else inode.synced
                inode.data = begun[: rng.randint(len(inode.synced), len(begun))]
            inode.synced = inode.data
        self._histories = [self._names]

    def _change(self, names: dict[str, Inode]) -> None:
        self._names = names
        self._histories.append(names)


class MemoryPath:
    def __init__(self, disk: MemoryDisk, name: str) -> None:
        self.disk = disk
        self.name = name

    def __truediv__(self, name: str) -> MemoryPath:
        return MemoryPath(self.disk, f"{self.name}/{name}")

    def with_name(self, name: str) -> MemoryPath:
        return MemoryPath(self.disk, f"{self.name.rsplit('/', 1)[0]}/{name}")

    def with_suffix(self, suffix: str) -> MemoryPath:
        return MemoryPath(self.disk, self.name.rsplit(".", 1)[0] + suffix)

    def mkdir(self, **_: object) -> None:
        pass

    def exists(self) -> bool:
        return self.disk.has(self.name)

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=len(self.disk.find(self.name).data))

    def read_text(self) -> str:
        return self.disk.find(self.name).data.decode()

    def read_bytes(self) -> bytes:
        return self.disk.find(self.name).data

    def open(self, mode: str = "r", buffering: int = -1) -> MemoryFile:
        self.disk.at(f"open {self.name}")
        inode = self.disk.create(self.name)
        if mode == "w":
            inode.data = b""
        return MemoryFile(self.disk, inode, buffered=buffering != 0)

    def replace(self, target: MemoryPath) -> None:
        if self.disk.at(f"rename {self.name}") is Fault.DISK_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.disk.rename(self.name, target.name)

    def __str__(self) -> str:
        return self.name


class MemoryFile:
    """A file that is written at its end. Text is buffered until a flush."""

    def __init__(self, disk: MemoryDisk, inode: Inode, *, buffered: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._buffered = buffered
        self._buffer = b""

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._buffer and not self._disk.striker.agent_is_dead:
            self.flush()

    def write(self, data: str | bytes) -> int:
        raw = data.encode() if isinstance(data, str) else data
        self._buffer += raw
        return len(raw) if self._buffered else self._write_out()

    def flush(self) -> None:
        wanted = len(self._buffer)
        if self._write_out() < wanted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def tell(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._inode.data = self._inode.data[:size]

    def fileno(self) -> MemoryFile:
        return self

    def fsync(self) -> None:
        if self._disk.at("fsync") in (Fault.WRITE_NOT_DURABLE, Fault.DISK_FULL):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._inode.synced = self._inode.data

    def _write_out(self) -> int:
        """Returns how many bytes were written: a disk that becomes full takes the first ones."""
        raw, self._buffer = self._buffer, b""
        if self._disk.at("write") is Fault.DISK_FULL:
            raw = raw[: len(raw) // 3]
        self._inode.data += raw
        return len(raw)


class _Directory:
    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def fsync(self) -> None:
        if self._disk.at("fsync of the directory") is Fault.WRITE_NOT_DURABLE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.sync_names()


@contextmanager
def store_on_memory_disks() -> Iterator[None]:
    """placewire.agent.store takes MemoryPath directories while this is entered."""
    real = store.os, store.open_own, store.read_own  # type: ignore[attr-defined]
    store.os = SimpleNamespace(  # type: ignore[assignment, attr-defined]
        fsync=lambda handle: handle.fsync(),
        open=lambda path, _: _Directory(path.disk),
        close=lambda _: None,
        O_RDONLY=os.O_RDONLY,
        strerror=os.strerror,
    )
    store.open_own = MemoryPath.open  # type: ignore[assignment, attr-defined]
    store.read_own = MemoryPath.read_bytes  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        store.os, store.open_own, store.read_own = real  # type: ignore[attr-defined]
