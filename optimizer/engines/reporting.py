"""Reports progress at least every second while a placement is searched, and times each stage."""

from __future__ import annotations

import threading
import time
from typing import Self

from placewire.optimizer.engines.solution import Progress, Report

# After this long without a report, the last one is repeated.
_SILENCE_SECONDS = 1.0


class Clock:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.stages: dict[str, float] = {}
        self._last = self.began

    def stage(self, name: str) -> None:
        """Adds the time since the last call to the stage `name`."""
        now = time.monotonic()
        self.stages[name] = round(self.stages.get(name, 0.0) + now - self._last, 4)
        self._last = now


class Reporter:
    """Joins the reports of several stages into one, repeated at least every second while entered.

    The incumbent never rises and the bound never falls; both are of the graph as given.
    """

    def __init__(self, progress: Report | None, clock: Clock) -> None:
        self._progress, self._clock = progress, clock
        self._incumbent, self._bound, self._moves, self._earlier = float("inf"), 0.0, 0, 0
        self._lock = threading.Lock()
        self._said = clock.began
        self._over = threading.Event()
        self._beat = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._beat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._beat.is_alive():
            self._beat.join()

    def known(self, *, incumbent: float = float("inf"), bound: float = 0.0) -> None:
        self._say(incumbent, bound, 0)

    def search(self, progress: Progress) -> None:
        """A report from a search of the graph as given."""
        self._say(progress.incumbent_seconds, 0.0, progress.moves)

    def elsewhere(self, progress: Progress) -> None:
        """A report from a search of a reduced graph, of which only the moves count."""
        self._say(float("inf"), 0.0, progress.moves)

    def aside(self, progress: Progress) -> None:
        """A report from an engine that may have another model: only its words are passed on."""
        with self._lock:
            self._report(progress.words)

    def next_search(self) -> None:
        """Another search follows, which counts its moves from 0."""
        self._earlier, self._moves = self._earlier + self._moves, 0

    def _say(self, incumbent: float, bound: float, moves: int) -> None:
        with self._lock:
            self._incumbent = min(self._incumbent, incumbent)
            self._bound = max(self._bound, bound)
            self._moves = max(self._moves, moves)
            self._report()

    def _report(self, words: str = "") -> None:
        if self._progress is None:
            return
        self._said = time.monotonic()
        elapsed = self._said - self._clock.began
        incumbent = max(self._incumbent, self._bound)
        moves = self._earlier + self._moves
        self._progress(Progress(elapsed, incumbent, self._bound, moves, words))

    def _repeat(self) -> None:
        while not self._over.wait(_SILENCE_SECONDS / 4):
            with self._lock:
                if time.monotonic() - self._said > _SILENCE_SECONDS:
                    self._report()


class JoinedReports:
    """Joins the reports of several searches: time and moves go on, the incumbent never rises."""

    def __init__(self, progress: Report | None) -> None:
        self._progress, self._began = progress, time.monotonic()
        self._incumbent, self._moves, self._earlier = float("inf"), 0, 0

    def next(self) -> Report | None:
        """Returns the function to which the next search reports."""
        self._earlier += self._moves
        self._moves = 0
        return None if self._progress is None else self._say

    def _say(self, progress: Progress) -> None:
        assert self._progress is not None
        self._moves = progress.moves
        self._incumbent = min(self._incumbent, progress.incumbent_seconds)
        bound = min(progress.bound_seconds, self._incumbent)
        elapsed, moves = time.monotonic() - self._began, self._earlier + progress.moves
        self._progress(Progress(elapsed, self._incumbent, bound, moves, progress.words))
