"""Measures how long a rank waited for a processor while its steps ran, as the kernel counts it."""

from __future__ import annotations

import time
from pathlib import Path

_THREADS = Path("/proc/self/task")


class ProcessorWaits:
    """Of the process's threads, the one counts that waited longest: what waits at the same time
    must not count twice. A thread waits while it could run and another runs in its place.

    threads: a folder like /proc/self/task.
    """

    def __init__(self, threads: Path = _THREADS) -> None:
        self._threads = threads
        self._before: dict[str, int] = {}
        self._since: float | None = None

    def after_first_step(self) -> None:
        """The first step warms up, and is not counted."""
        self._before, self._since = self._waited(), time.monotonic()

    @property
    def share(self) -> float | None:
        """The part of the time since after_first_step(), 0 to 1; None before, and where the kernel
        does not count. To read it takes about as long as reading twenty files."""
        waited = self._waited()
        if self._since is None or not waited:
            return None
        # A thread that is new since then has waited since then.
        longest = max(ns - self._before.get(thread, 0) for thread, ns in waited.items())
        seconds = time.monotonic() - self._since
        return min(1.0, max(0, longest) / 1e9 / seconds) if seconds > 0 else 0.0

    def _waited(self) -> dict[str, int]:
        """Returns by thread the nanoseconds that it has waited since it began; empty where there is
        no /proc, as in some containers: what is only reported ends no job."""
        found = {}
        try:
            folders = [*self._threads.iterdir()]
        except OSError:
            return {}
        for folder in folders:
            try:
                found[folder.name] = int((folder / "schedstat").read_text().split()[1])
            except (OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
                continue
        return found
