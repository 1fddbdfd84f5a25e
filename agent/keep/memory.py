"""The agent's memory of its lease: what it keeps in memory, on disk, and in step with the clock.

The expiry of a lease is written in wall-clock time, since only that outlives a restart. While the
agent runs, time is counted by a clock that nobody sets: where the wall clock is set, expiries move
along.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.effects import EffectError, Store
from placewire.agent.reconcile.lease import Kept
from placewire.agent.reconcile.steps import Step

log = logging.getLogger(__name__)

AUDIT_VERSION = 1
# A wall clock that is off by less is slewed, not set.
CLOCK_TOLERANCE_SECONDS = 0.5


def elapsed_seconds() -> float:
    """Since the boot, sleep included; never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Memory:
    """lock: held by whoever calls a method that changes `kept`."""

    def __init__(
        self, store: Store, clock: Callable[[], float], elapsed: Callable[[], float]
    ) -> None:
        self._store = store
        self._clock = clock
        self._elapsed = elapsed
        self.lock = threading.Lock()
        self.kept = store.load()
        # Whether the disk lags behind `kept`, and when it was last tried.
        self.unsaved = False
        self._tried_at = elapsed()
        # What expiries are written in: wall-clock time less elapsed time.
        self._wall_offset = clock() - elapsed()

    def now(self) -> float:
        """Wall-clock time, with expiries in step with it."""
        now = self._clock()
        set_by = now - self._elapsed() - self._wall_offset
        if abs(set_by) > CLOCK_TOLERANCE_SECONDS:
            log.warning("the clock was set by %.1f s: expiries move along", set_by)
            self._wall_offset += set_by
            self.hold(leases.with_clock_set(self.kept, set_by))
        return now

    def save(self, kept: Kept) -> None:
        """Raises EffectError, with nothing changed here, where the disk does not take it."""
        if kept is not self.kept:
            try:
                self._store.save(kept)
            except OSError as error:
                raise EffectError(f"the agent's state cannot be saved: {error}") from error
            self.kept, self.unsaved = kept, False

    def hold(self, kept: Kept) -> None:
        """A full disk must not keep anything from being undone: what it does not take is held
        here, and saved later."""
        try:
            self.save(kept)
        except EffectError as error:
            log.error("%s; going on without (an agent that starts anew would not know)", error)
            self.kept, self.unsaved, self._tried_at = kept, True, self._elapsed()

    def save_again(self) -> None:
        """What the disk did not take; not at every call."""
        if self.unsaved and self._elapsed() - self._tried_at >= leases.RETRY_SECONDS:
            self._tried_at = self._elapsed()
            try:
                self._store.save(self.kept)
            except OSError:
                return
            self.unsaved = False
            log.info("the agent's state is saved again")

    def note(self, event: str, steps: Sequence[Step], detail: str = "") -> None:
        try:
            self.audit(event, steps, detail)
        except EffectError as error:
            log.error("%s; going on without: %s of %d changes", error, event, len(steps))

    def audit(self, event: str, steps: Sequence[Step], detail: str = "") -> None:
        """Raises EffectError."""
        lease = self.kept.lease
        common = {
            "version": AUDIT_VERSION,
            "unix": self._clock(),
            "event": event,
            "generation": lease.generation,
            "plan": lease.plan_name,
            "detail": detail or lease.detail,
        }
        records = [{**common, "change": step.as_change().model_dump()} for step in steps]
        try:
            self._store.audit(records or [common])
        except OSError as error:
            raise EffectError(f"the audit log cannot be written: {error}") from error
