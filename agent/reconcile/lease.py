"""The lease's state machine, on which all undoing depends. Pure: the clock is passed in.

          stage              read back              commit
    idle ───────▶ applying ───────────▶ staged ───────────────▶ committed
      ▲              │ failed, crashed     │ expired, restore       │ expired, restore, destroy
      └──────────────┴──── restoring ◀─────┴────────────────────────┘
                               │ could not: failed, and tried again

A restore brings back the newest baseline that is still entitled to be in force (its own lease has
not run out), or nothing where there is none.

An expiry is written in wall-clock time, for people; it counts by the boot clock, which nobody sets.
What is saved has both clocks as they were (ClockMark), so that an agent that starts again knows how
much of a lease is left, whatever was done to the wall clock meanwhile.
"""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.numbers import LONGEST_LEASE_SECONDS
from placewire.agent.contract.state import (
    DesiredState,
    LeaseState,
    Ledger,
    ObservedState,
    refuse,
)
from placewire.agent.reconcile import ledger as ledgers
from placewire.frozen import Frozen

RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
KEPT_VERSION: Literal[2] = 2


class Baseline(Frozen):
    """A committed state, and until when it is entitled to be in force (None: without end)."""

    desired: DesiredState
    expires_unix: float | None


class ClockMark(Frozen):
    """The clocks at one moment. boot_id: names the boot of the kernel that boot_seconds, which
    nobody sets, count from; unix: the wall clock."""

    boot_id: str
    boot_seconds: float
    unix: float


class Kept(Frozen):
    """All that an agent keeps on disk.

    desired    the state in force, or the one that a change aims at (None: nothing of ours)
    baselines  what a restore may bring back, newest last
    ledger     values of others as they were before we changed them
    saved_at   the clocks as this was saved; None where an agent of version 1 wrote it
    """

    version: Literal[1, 2] = KEPT_VERSION
    lease: LeaseState = LeaseState(phase="idle", generation=0)
    desired: DesiredState | None = None
    baselines: tuple[Baseline, ...] = ()
    ledger: Ledger = Ledger()
    saved_at: ClockMark | None = None


class LeaseRefusedError(ValueError):
    """The lease does not allow what was asked for."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        self.refusal = refuse(where, what, remedy)
        super().__init__(self.refusal.sentence)


def with_known_addresses(kept: Kept) -> Kept:
    """The ledger of an agent that did not note which addresses it gives: completed from its
    states."""
    states = [baseline.desired for baseline in kept.baselines]
    states += [kept.desired] if kept.desired else []
    return kept.model_copy(update={"ledger": ledgers.with_addresses(states, kept.ledger)})


def check_stage(kept: Kept, desired: DesiredState, now_unix: float) -> Literal["new", "again"]:
    """`again`: this very state is already in force. Raises LeaseRefusedError."""
    lease, where = kept.lease, f"server {desired.server}"
    if lease.is_unsettled:
        raise LeaseRefusedError(
            where,
            f"the server is {lease.phase} ({lease.detail or 'another change is under way'})",
            "wait until it has settled, or ask it to restore",
        )
    same = (desired.generation, desired.content_digest) == (lease.generation, lease.content_digest)
    if same and lease.is_in_force:
        _require_time_left(lease, now_unix, where)
        return "again"
    if holder := _other_plan(kept, desired.plan_name):
        raise LeaseRefusedError(
            where,
            f"plan {holder!r} is in force here, and a server carries one plan at a time",
            f"`controller destroy` that plan first, or give this one the name {holder!r} to "
            "replace it",
        )
    if desired.generation <= lease.highest_generation:
        raise LeaseRefusedError(
            where,
            f"generation {desired.generation} is not above {lease.highest_generation}, the "
            "highest that this server has seen",
            f"stage with a generation above {lease.highest_generation}",
        )
    return "new"


def check_destroy(kept: Kept, plan_name: str) -> None:
    """Raises LeaseRefusedError where another plan is in force."""
    if holder := _other_plan(kept, plan_name):
        raise LeaseRefusedError(
            f"server {kept.desired.server if kept.desired else ''}".strip(),
            f"plan {holder!r} is in force here, not {plan_name!r}",
            "destroy it with its own plan",
        )


def _other_plan(kept: Kept, plan_name: str) -> str | None:
    """The name of the plan in force, if it is another than `plan_name`."""
    holder = kept.desired.plan_name if kept.desired is not None else None
    return holder if holder != plan_name else None


def begin_stage(kept: Kept, desired: DesiredState, ledger: Ledger) -> Kept:
    """What must be on disk before anything is touched."""
    beneath = _beneath(kept)
    lease = _lease_of(desired, "applying", kept.lease.highest_generation, beneath)
    return Kept(lease=lease, desired=desired, baselines=beneath, ledger=ledger)


def staged(
    kept: Kept, expires_unix: float, observed: ObservedState, now_unix: float, detail: str = ""
) -> Kept:
    """To be called once the state was read back and found as desired. detail: what is to be told
    of it. A committed state that is staged again keeps the lease that it has. Raises
    LeaseRefusedError where the lease of a state that was staged again has run out meanwhile."""
    if kept.lease.is_committed:
        return kept
    _require_time_left(kept.lease, now_unix, "stage")
    settled = _settled(kept, observed)
    return _with_lease(settled, phase="staged", expires_unix=expires_unix, detail=detail)


def renewed(kept: Kept, generation: int, expires_unix: float, now_unix: float) -> Kept:
    """Raises LeaseRefusedError where that generation is not, or no longer, in force."""
    _require_in_force(kept, generation, now_unix, "renew")
    if kept.lease.is_kept:
        return kept
    return _with_lease(kept, expires_unix=expires_unix)


def committed(kept: Kept, generation: int, expires_unix: float | None, now_unix: float) -> Kept:
    """expires_unix None: the state is kept. A kept state stays kept: a later commit under a lease
    was sent before. Raises LeaseRefusedError."""
    _require_in_force(kept, generation, now_unix, "commit")
    if kept.lease.is_kept:
        return kept
    if expires_unix is None:
        kept = kept.model_copy(update={"baselines": _down_to_kept(kept.baselines)})
    return _with_lease(kept, phase="committed", expires_unix=expires_unix)


def check_restore(kept: Kept, generation: int) -> bool:
    """Whether there is something to undo; False where that generation is already gone, or never
    came. Raises LeaseRefusedError where a newer one is in force."""
    lease = kept.lease
    if lease.is_going_back:
        return True
    if not lease.is_idle and generation < lease.generation:
        raise LeaseRefusedError(
            "restore",
            f"generation {lease.generation} is in force, which is newer than {generation}",
            f"restore generation {lease.generation}, or destroy",
        )
    return not lease.is_idle and generation == lease.generation


def never_to_come(kept: Kept, generation: int) -> Kept:
    """For a generation that was given up before it arrived: a late stage of it will be refused."""
    return _with_lease(kept, highest_generation=max(generation, kept.lease.highest_generation))


def begin_restore(kept: Kept, now_unix: float, why: str) -> Kept:
    """The newest baseline that is still entitled to be in force becomes the aim; also where one
    that was being brought back has lost its own lease meanwhile."""
    if kept.lease.is_going_back and not _is_past(kept.lease.expires_unix, now_unix):
        return _with_lease(kept, phase="restoring")
    entitled = kept.baselines
    while entitled and _is_past(entitled[-1].expires_unix, now_unix):
        entitled = entitled[:-1]
    target = entitled[-1] if entitled else None
    return _restoring(kept, target, entitled[:-1], why)


def begin_destroy(kept: Kept) -> Kept:
    return _restoring(kept, None, (), "destroy")


def begin_restore_from_marks(kept: Kept, ledger: Ledger) -> Kept:
    """For a server whose state on disk is lost: the marks tell what was there before."""
    return _restoring(kept.model_copy(update={"ledger": ledger}), None, (), "restore from marks")


def restored(kept: Kept, observed: ObservedState, detail: str = "") -> Kept:
    """To be called once the read-back shows that the aim of `begin_restore` is in force. detail:
    what is to be told of it."""
    phase = "idle" if kept.desired is None else "committed"
    return _with_lease(_settled(kept, observed), phase=phase, detail=detail)


def restored_in_part(kept: Kept, part: DesiredState, observed: ObservedState) -> Kept:
    """To be called once the read-back shows that `part` of the aim is in force. What that gave back
    is its owner's, however long the rest takes."""
    beneath = [kept.desired] if kept.desired is not None else []
    beneath += [baseline.desired for baseline in kept.baselines]
    ledger = ledgers.settled(part, observed, kept.ledger, beneath)
    return kept.model_copy(update={"ledger": ledger})


def failed(kept: Kept, detail: str) -> Kept:
    return _with_lease(kept, phase="failed", detail=detail)


def must_restore(kept: Kept, now_unix: float) -> str | None:
    """Why the baseline must come back now, or None. To be asked while no change is under way."""
    lease = kept.lease
    if lease.phase == "applying":
        return "the agent stopped in the middle of a change"
    if lease.phase == "restoring":
        return lease.detail or "the agent stopped while restoring"
    if lease.phase == "failed":
        return f"restoring failed before: {lease.detail}"
    if lease.is_in_force and _is_past(lease.expires_unix, now_unix):
        return f"the lease of generation {lease.generation} expired"
    return None


def seconds_until_due(kept: Kept, now_unix: float, retry_seconds: float) -> float | None:
    """When to ask `must_restore` again; None: nothing will happen by itself.

    retry_seconds: how long an unsettled lease is still left alone.
    """
    lease = kept.lease
    if lease.is_unsettled:
        return retry_seconds
    if lease.is_in_force and lease.expires_unix is not None:
        return max(0.0, lease.expires_unix - now_unix)
    return None


def with_clock_set(kept: Kept, by_seconds: float) -> Kept:
    """Moves all expiries along after somebody set the wall clock by that much: an expiry promises a
    time from now, whatever the clock says meanwhile."""

    def moved(expires_unix: float | None) -> float | None:
        return None if expires_unix is None else expires_unix + by_seconds

    baselines = tuple(
        baseline.model_copy(update={"expires_unix": moved(baseline.expires_unix)})
        for baseline in kept.baselines
    )
    changed = kept.model_copy(update={"baselines": baselines})
    return _with_lease(changed, expires_unix=moved(kept.lease.expires_unix))


def resumed(kept: Kept, now: ClockMark) -> Kept:
    """What an agent read from disk, with its expiries by the clocks of now. After another boot only
    the wall clock can tell how much time has passed, and it may be wrong: a lease then has at most
    as long as it had when it was saved."""
    saved = kept.saved_at

    def expiry(expires_unix: float | None) -> float | None:
        if expires_unix is None:
            return None
        if saved is None:
            return min(expires_unix, now.unix + LONGEST_LEASE_SECONDS)
        left = expires_unix - saved.unix
        if saved.boot_id == now.boot_id:
            return now.unix + left - (now.boot_seconds - saved.boot_seconds)
        return min(expires_unix, now.unix + left)

    baselines = tuple(
        baseline.model_copy(update={"expires_unix": expiry(baseline.expires_unix)})
        for baseline in kept.baselines
    )
    changed = kept.model_copy(update={"baselines": baselines})
    return _with_lease(changed, expires_unix=expiry(kept.lease.expires_unix))


def retry_seconds(failures: int) -> float:
    """The pause after so many failures in a row: each attempt may disturb what works."""
    return float(min(RETRY_SECONDS * 2 ** min(max(failures - 1, 0), 10), LONGEST_RETRY_SECONDS))


def _beneath(kept: Kept) -> tuple[Baseline, ...]:
    """The baselines of the state that is staged next; only a committed state becomes one."""
    if kept.lease.is_committed and kept.desired is not None:
        baseline = Baseline(desired=kept.desired, expires_unix=kept.lease.expires_unix)
        below = kept.baselines if baseline.expires_unix is not None else ()
        return (*below, baseline)
    return kept.baselines


def _down_to_kept(baselines: tuple[Baseline, ...]) -> tuple[Baseline, ...]:
    """Without those beneath the newest baseline that has no end, which never come back."""
    kept = [at for at, baseline in enumerate(baselines) if baseline.expires_unix is None]
    return baselines[kept[-1] :] if kept else baselines


def _restoring(
    kept: Kept, target: Baseline | None, beneath: tuple[Baseline, ...], why: str
) -> Kept:
    highest = kept.lease.highest_generation
    if target is None:
        lease = LeaseState(phase="restoring", generation=0, highest_generation=highest, detail=why)
        return Kept(lease=lease, baselines=beneath, ledger=kept.ledger)
    lease = _lease_of(target.desired, "restoring", highest, beneath).model_copy(
        update={"expires_unix": target.expires_unix, "detail": why}
    )
    return Kept(lease=lease, desired=target.desired, baselines=beneath, ledger=kept.ledger)


def _lease_of(
    desired: DesiredState,
    phase: Literal["applying", "restoring"],
    highest: int,
    beneath: tuple[Baseline, ...],
) -> LeaseState:
    return LeaseState(
        phase=phase,
        generation=desired.generation,
        highest_generation=max(desired.generation, highest),
        plan_name=desired.plan_name,
        plan_digest=desired.plan_digest,
        content_digest=desired.content_digest,
        baseline_generation=beneath[-1].desired.generation if beneath else None,
    )


def _require_in_force(kept: Kept, generation: int, now_unix: float, verb: str) -> None:
    lease = kept.lease
    in_force = lease.is_in_force and lease.generation == generation
    if not in_force or _is_past(lease.expires_unix, now_unix):
        raise LeaseRefusedError(
            verb,
            f"generation {generation} is not in force: the server is {lease.phase} at generation "
            f"{lease.generation}",
            "stage again with a new generation",
        )


def _require_time_left(lease: LeaseState, now_unix: float, where: str) -> None:
    if _is_past(lease.expires_unix, now_unix):
        raise LeaseRefusedError(
            where,
            f"the lease of generation {lease.generation} has run out",
            "stage again with a new generation",
        )


def _settled(kept: Kept, observed: ObservedState) -> Kept:
    beneath = [baseline.desired for baseline in kept.baselines]
    ledger = ledgers.settled(kept.desired, observed, kept.ledger, beneath)
    return kept.model_copy(update={"ledger": ledger})


def _is_past(expires_unix: float | None, now_unix: float) -> bool:
    return expires_unix is not None and expires_unix <= now_unix


def _with_lease(kept: Kept, **changes: object) -> Kept:
    return kept.model_copy(update={"lease": kept.lease.model_copy(update=changes)})
