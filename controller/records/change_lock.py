"""A lock that lets one change of servers run, or begin, at a time, and names who has it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from placewire.controller.errors import UsageError

LOCK_NAME = "apply.lock"
_LOOKS_SECONDS = 0.5
_AGAIN_SECONDS = 0.01


class ChangeLock:
    """directory: where the lock's file is. say: told where a change goes on without the lock.
    needed: whether a change must not go on without it."""

    def __init__(self, directory: Path, say: Callable[[str], None], *, needed: bool) -> None:
        self._file, self._say, self._needed = directory / LOCK_NAME, say, needed

    def holder(self) -> str | None:
        """Names the process that has a change under way; None where there is none, or where the
        lock cannot be looked at."""
        try:
            # Two that look are no change to each other, and who only looks makes no file.
            descriptor = self._locked(fcntl.LOCK_SH, makes=False)
        except OSError:
            return None
        if descriptor is None:
            return self._named_holder()
        os.close(descriptor)
        return None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the lock for a change. Raises UsageError, which names the holder, where another
        process has it. The kernel frees the lock when its holder dies, however it dies.

        Where the lock's file cannot be opened: raises UsageError, or, where it is not needed, says
        so and holds nothing."""
        try:
            # One that only looks has it for a moment.
            until = time.monotonic() + _LOOKS_SECONDS
            while (
                descriptor := self._locked(fcntl.LOCK_EX, makes=True)
            ) is None and time.monotonic() < until:
                time.sleep(_AGAIN_SECONDS)
        except OSError as error:
            if self._needed:
                raise UsageError(
                    f"the lock cannot be used: {error.strerror}",
                    where=str(self._file),
                    remedy="run as the user that owns it, or free space on its disk",
                ) from error
            self._say(
                f"{self._file}: {error.strerror}; no other change on these servers may run "
                "beside this command"
            )
            yield
            return
        if descriptor is None:
            raise UsageError(
                f"another change is under way: {self._named_holder()}",
                where=str(self._file),
                remedy="wait for it to end, or interrupt it (Ctrl-C): it restores the network",
            )
        try:
            mine = {"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            # This only informs others: a full disk must not keep `recover` from running.
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(mine).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _locked(self, how: int, *, makes: bool) -> int | None:
        """Returns a descriptor that holds the lock until it is closed; None where it is held. Only
        the file's owner may open it: whoever can read it could hold the lock. Raises OSError."""
        made = os.O_CREAT if makes else 0
        descriptor = os.open(self._file, os.O_RDWR | made | os.O_NOFOLLOW, 0o600)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)  # A former release made it readable by all.
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _named_holder(self) -> str:
        try:
            holder = json.loads(self._file.read_bytes())
            named = f"process {holder['pid']}, since {holder['since']}"
            if not _is_stopped(int(holder["pid"])):
                return named
            return f"{named}, which is stopped (Ctrl-Z); `kill -CONT {holder['pid']}` has it go on"
        except (ValueError, KeyError, TypeError):  # it names itself a moment after it gets the lock
            return "it has just begun"


def _is_stopped(pid: int) -> bool:
    """False also where that cannot be known, as in another namespace of processes."""
    try:
        # pid (name) state ...; the name may have spaces, parentheses and any other byte
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
