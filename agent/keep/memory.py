"""The agent's memory of its lease: in the process, on disk, and in step with the clock.

The expiry of a lease is written in wall-clock time. A running agent counts by the boot clock,
which nobody sets, and moves expiries along where the wall clock is set. An agent that starts finds
on disk what both clocks showed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from placewire.agent.contract.state import LeaseState
from placewire.agent.reconcile import lease as leases
from placewire.agent.reconcile.effects import EffectError, Store
from placewire.agent.reconcile.lease import KEPT_VERSION, ClockMark, Kept
from placewire.agent.reconcile.ledger import owed_sentences
from placewire.agent.reconcile.steps import Step

log = logging.getLogger(__name__)

AUDIT_VERSION = 1
# A wall clock that moves by less was slewed, not set.
CLOCK_TOLERANCE_SECONDS = 0.5


def elapsed_seconds() -> float:
    """Seconds since the boot, sleep included, by a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """A name that the kernel gives each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Memory:
    """lock: held by whoever calls a method that changes `kept`. boot_id: of the boot that `elapsed`
    counts from."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        elapsed: Callable[[], float],
        boot_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._clock = clock
        self._elapsed = elapsed
        self._boot_id = boot_id
        self.lock = threading.Lock()
        # Wall-clock time less elapsed time, as the expiries were written by.
        self._wall_offset = clock() - elapsed()
        self.kept = leases.resumed(leases.with_known_addresses(store.load()), self._mark())
        # Whether the disk may have something else than `kept`, and when a save was last tried.
        self.unsaved = False
        self._tried_at = elapsed()

    @property
    def lease(self) -> LeaseState:
        """The lease, with the debts that the ledger has."""
        kept = self.kept
        return kept.lease.model_copy(update={"owed": owed_sentences(kept.ledger)})

    def save_clocks(self) -> None:
        """Saves leases of another boot, or of an agent that saved no clocks, as they count now:
        otherwise every start would grant them anew. To be called at an agent's start."""
        saved = self.kept.saved_at
        if self.kept.lease.is_idle and not self.kept.ledger.owed:
            return
        if saved is None or saved.boot_id != self._boot_id():
            self.hold(self.kept.model_copy())

    def told_unix(self) -> float:
        """Wall-clock time, for what people are told: no expiry goes by it."""
        return self._clock()

    def now(self) -> float:
        """Wall-clock time, after expiries were put in step with it."""
        now = self._clock()
        set_by = now - self._elapsed() - self._wall_offset
        if abs(set_by) > CLOCK_TOLERANCE_SECONDS:
            log.warning("the clock was set by %.1f s: expiries move along", set_by)
            self._wall_offset += set_by
            self.hold(leases.with_clock_set(self.kept, set_by))
        return now

    def save(self, kept: Kept) -> None:
        """Raises EffectError where the disk does not take it; `self.kept` then stays as it was, and
        the disk is brought back to that: a write that fails late may be there all the same."""
        if (error := self._take(kept)) is None:
            return
        what = f"the agent's state cannot be saved: {error}"
        self._bring_disk_back()
        if self.unsaved:
            what += "; an agent that starts before the disk works again may do it all the same"
        raise EffectError(what) from error

    def hold(self, kept: Kept) -> None:
        """Like `save`, but what the disk does not take is held here and saved later: a full disk
        must not keep anything from being undone."""
        if (error := self._take(kept)) is not None:
            log.error(
                "the agent's state cannot be saved: %s; going on without (an agent that starts "
                "anew would not know)",
                error,
            )
            self.kept, self.unsaved, self._tried_at = kept, True, self._elapsed()

    def _take(self, kept: Kept) -> OSError | None:
        """Saves and remembers it; returns why the disk does not take it."""
        if kept is not self.kept:
            marked = self._marked(kept)
            try:
                self._store.save(marked)
            except OSError as error:
                return error
            self.kept, self.unsaved = marked, False
        return None

    def _mark(self) -> ClockMark:
        """The clocks of now; the wall clock as it was when expiries were put in step with it."""
        elapsed = self._elapsed()
        return ClockMark(
            boot_id=self._boot_id(), boot_seconds=elapsed, unix=elapsed + self._wall_offset
        )

    def _marked(self, kept: Kept) -> Kept:
        return kept.model_copy(update={"version": KEPT_VERSION, "saved_at": self._mark()})

    def save_again(self) -> None:
        """Saves what the disk did not take, at most once every RETRY_SECONDS."""
        if self.unsaved and self._elapsed() - self._tried_at >= leases.RETRY_SECONDS:
            self._bring_disk_back()
            if not self.unsaved:
                log.info("the agent's state is saved again")

    def _bring_disk_back(self) -> None:
        """Writes what is remembered. Where that fails, `save_again` tries it later."""
        self._tried_at = self._elapsed()
        try:
            self._store.save(self._marked(self.kept))
        except OSError:
            self.unsaved = True
        else:
            self.unsaved = False

    def note(self, event: str, steps: Sequence[Step], detail: str = "") -> None:
        """Like `audit`, but a failure is only logged."""
        try:
            self.audit(event, steps, detail)
        except EffectError as error:
            log.error("%s; going on without: %s of %d changes", error, event, len(steps))

    def audit(self, event: str, steps: Sequence[Step], detail: str = "") -> None:
        """Writes an event and its steps to the audit log. Raises EffectError."""
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
