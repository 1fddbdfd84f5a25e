"""The one thing that carries undoing: the lease's state machine. Pure: the clock is passed in.

          stage              read back              commit
    idle ───────▶ applying ───────────▶ staged ───────────────▶ committed
      ▲              │ failed, crashed     │ expired, restore       │ expired, restore, destroy
      └──────────────┴──── restoring ◀─────┴────────────────────────┘
                               │ could not: failed, and tried again

What a restore brings back is the newest state beneath that is still entitled to be in force (a
committed one whose own lease has not run out), or nothing at all.
"""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.state import DesiredState, LeaseState, Ledger, Refusal
from placewire.agent.reconcile.diff import prune_ledger
from placewire.frozen import Frozen

RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0


class Baseline(Frozen):
    """A committed state and how long it is entitled to be in force (None: until told otherwise)."""

    desired: DesiredState
    expires_unix: float | None


class Kept(Frozen):
    """All that an agent keeps on disk.

    desired    what is in force, or being brought in force (None: nothing of ours)
    baselines  what lies beneath it, newest last
    ledger     foreign values as they were before we changed them
    """

    version: Literal[1] = 1
    lease: LeaseState = LeaseState(phase="idle", generation=0)
    desired: DesiredState | None = None
    baselines: tuple[Baseline, ...] = ()
    ledger: Ledger = Ledger()


class LeaseRefusedError(ValueError):
    """The lease does not allow what was asked; refusal says why and what to do."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.where}: {refusal.what}; {refusal.remedy}")
        self.refusal = refusal


def check_stage(kept: Kept, desired: DesiredState) -> Literal["new", "again"]:
    """`again`: this very state is already in force. Raises LeaseRefusedError."""
    lease = kept.lease
    if lease.is_unsettled:
        raise _refused(
            desired,
            f"the server is {lease.phase} ({lease.detail or 'another change is under way'})",
            "wait until it has settled, or ask it to restore",
        )
    if (
        desired.generation == lease.generation
        and lease.is_in_force
        and desired.content_digest == lease.content_digest
    ):
        return "again"
    if holder := _other_plan(kept, desired.plan_name):
        raise _refused(
            desired,
            f"plan {holder!r} is in force here, and a server carries one plan at a time",
            f"`controller destroy` that plan first, or give this one the name {holder!r} to "
            "replace it",
        )
    if desired.generation <= lease.highest_generation:
        raise _refused(
            desired,
            f"generation {desired.generation} is not above {lease.highest_generation}, the "
            "highest that this server has seen",
            f"stage with a generation above {lease.highest_generation}",
        )
    return "new"


def check_destroy(kept: Kept, plan_name: str) -> None:
    """Raises LeaseRefusedError where what is in force is another plan's."""
    if holder := _other_plan(kept, plan_name):
        raise LeaseRefusedError(
            Refusal(
                what=f"plan {holder!r} is in force here, not {plan_name!r}",
                where=f"server {kept.desired.server if kept.desired else ''}".strip(),
                remedy="destroy it with its own plan",
            )
        )


def _other_plan(kept: Kept, plan_name: str) -> str | None:
    """The name of the plan that is in force, if it is not this one."""
    holder = kept.desired.plan_name if kept.desired is not None else None
    return holder if holder != plan_name else None


def begin_stage(kept: Kept, desired: DesiredState, ledger: Ledger) -> Kept:
    """What must be on disk before anything is touched."""
    return Kept(
        lease=_lease_of(desired, "applying", kept.lease.highest_generation).model_copy(
            update={"baseline_generation": _generation(_beneath(kept))}
        ),
        desired=desired,
        baselines=_beneath(kept),
        ledger=ledger,
    )


def staged(kept: Kept, expires_unix: float) -> Kept:
    """After the effective state was read back and found as desired. What was committed before,
    and is staged again, keeps the lease that it has."""
    if kept.lease.is_committed:
        return kept
    return _with_lease(kept, phase="staged", expires_unix=expires_unix)


def renewed(kept: Kept, generation: int, expires_unix: float, now_unix: float) -> Kept:
    """Raises LeaseRefusedError where that generation is not in force (any more)."""
    _require_in_force(kept, generation, now_unix, "renew")
    if kept.lease.is_kept:
        return kept
    return _with_lease(kept, expires_unix=expires_unix)


def committed(kept: Kept, generation: int, expires_unix: float | None, now_unix: float) -> Kept:
    """A state that is kept needs nothing beneath its own baseline, and stays kept: a commit under a
    lease that comes after that was sent before it. Raises LeaseRefusedError."""
    _require_in_force(kept, generation, now_unix, "commit")
    if kept.lease.is_kept:
        return kept
    baselines = kept.baselines if expires_unix is not None else kept.baselines[-1:]
    pruned = Kept(
        lease=kept.lease,
        desired=kept.desired,
        baselines=baselines,
        ledger=_ledger_for((kept.desired, *(b.desired for b in baselines)), kept.ledger),
    )
    return _with_lease(pruned, phase="committed", expires_unix=expires_unix)


def check_restore(kept: Kept, generation: int) -> bool:
    """Whether there is something to undo; False where that generation is already gone, or never
    came. Raises LeaseRefusedError where a newer one is in force."""
    lease = kept.lease
    if lease.is_going_back:
        return True
    if not lease.is_idle and generation == lease.generation:
        return True
    if generation < lease.generation and not lease.is_idle:
        raise LeaseRefusedError(
            Refusal(
                what=f"generation {lease.generation} is in force, which is newer than {generation}",
                where="restore",
                remedy=f"restore generation {lease.generation}, or destroy",
            )
        )
    return False


def never_to_come(kept: Kept, generation: int) -> Kept:
    """A generation that was given up before it arrived: a late stage of it must be refused."""
    return _with_lease(kept, highest_generation=max(generation, kept.lease.highest_generation))


def begin_restore(kept: Kept, now_unix: float, why: str) -> Kept:
    """The newest baseline that is still entitled becomes what is to be in force."""
    if kept.lease.is_going_back:
        return _with_lease(kept, phase="restoring")
    entitled = kept.baselines
    while entitled and _is_past(entitled[-1].expires_unix, now_unix):
        entitled = entitled[:-1]
    target = entitled[-1] if entitled else None
    return _restoring(kept, target, entitled[:-1], why)


def begin_destroy(kept: Kept) -> Kept:
    return _restoring(kept, None, (), "destroy")


def restored(kept: Kept) -> Kept:
    """After the read-back showed that what `begin_restore` aimed at is in force."""
    phase = "idle" if kept.desired is None else "committed"
    done = kept.model_copy(
        update={
            "ledger": _ledger_for((kept.desired, *(b.desired for b in kept.baselines)), kept.ledger)
        }
    )
    return _with_lease(done, phase=phase, detail="")


def failed(kept: Kept, detail: str) -> Kept:
    return _with_lease(kept, phase="failed", detail=detail)


def must_restore(kept: Kept, now_unix: float) -> str | None:
    """Why the baseline must come back now, if it must. Asked while no change is under way."""
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

    retry_seconds: how long what is unsettled is still left alone.
    """
    lease = kept.lease
    if lease.is_unsettled:
        return retry_seconds
    if lease.is_in_force and lease.expires_unix is not None:
        return max(0.0, lease.expires_unix - now_unix)
    return None


def with_clock_set(kept: Kept, by_seconds: float) -> Kept:
    """The same moments, after someone set the wall clock by that much: an expiry is a time from
    now that was promised, whatever the clock says meanwhile."""

    def moved(expires_unix: float | None) -> float | None:
        return None if expires_unix is None else expires_unix + by_seconds

    baselines = tuple(
        baseline.model_copy(update={"expires_unix": moved(baseline.expires_unix)})
        for baseline in kept.baselines
    )
    changed = kept.model_copy(update={"baselines": baselines})
    return _with_lease(changed, expires_unix=moved(kept.lease.expires_unix))


def retry_seconds(failures: int) -> float:
    """How long to leave alone what has failed that often in a row: each attempt may disturb what
    works, and is in the audit log."""
    return float(min(RETRY_SECONDS * 2 ** min(max(failures - 1, 0), 10), LONGEST_RETRY_SECONDS))


def _beneath(kept: Kept) -> tuple[Baseline, ...]:
    """Baselines of what is staged next: a staged, undecided state never becomes one."""
    if kept.lease.is_committed and kept.desired is not None:
        baseline = Baseline(desired=kept.desired, expires_unix=kept.lease.expires_unix)
        below = kept.baselines if baseline.expires_unix is not None else ()
        return (*below, baseline)
    return kept.baselines


def _restoring(
    kept: Kept, target: Baseline | None, beneath: tuple[Baseline, ...], why: str
) -> Kept:
    highest = kept.lease.highest_generation
    if target is None:
        lease = LeaseState(phase="restoring", generation=0, highest_generation=highest, detail=why)
    else:
        lease = _lease_of(target.desired, "restoring", highest).model_copy(
            update={
                "expires_unix": target.expires_unix,
                "baseline_generation": _generation(beneath),
                "detail": why,
            }
        )
    return Kept(
        lease=lease,
        desired=None if target is None else target.desired,
        baselines=beneath,
        ledger=kept.ledger,
    )


def _lease_of(
    desired: DesiredState, phase: Literal["applying", "restoring"], highest: int
) -> LeaseState:
    return LeaseState(
        phase=phase,
        generation=desired.generation,
        highest_generation=max(desired.generation, highest),
        plan_name=desired.plan_name,
        plan_digest=desired.plan_digest,
        content_digest=desired.content_digest,
    )


def _require_in_force(kept: Kept, generation: int, now_unix: float, verb: str) -> None:
    lease = kept.lease
    if (
        lease.generation != generation
        or not lease.is_in_force
        or _is_past(lease.expires_unix, now_unix)
    ):
        raise LeaseRefusedError(
            Refusal(
                what=f"generation {generation} is not in force: the server is {lease.phase} at "
                f"generation {lease.generation}",
                where=verb,
                remedy="stage again with a new generation",
            )
        )


def _ledger_for(states: tuple[DesiredState | None, ...], ledger: Ledger) -> Ledger:
    """What any of these states still covers."""
    parts = [prune_ledger(state, ledger) for state in states if state is not None]
    return Ledger(
        nics=tuple(nic for nic in ledger.nics if any(nic in part.nics for part in parts)),
        sysctls=tuple(s for s in ledger.sysctls if any(s in part.sysctls for part in parts)),
    )


def _generation(baselines: tuple[Baseline, ...]) -> int | None:
    return baselines[-1].desired.generation if baselines else None


def _is_past(expires_unix: float | None, now_unix: float) -> bool:
    return expires_unix is not None and expires_unix <= now_unix


def _with_lease(kept: Kept, **changes: object) -> Kept:
    return kept.model_copy(update={"lease": kept.lease.model_copy(update=changes)})


def _refused(desired: DesiredState, what: str, remedy: str) -> LeaseRefusedError:
    return LeaseRefusedError(Refusal(what=what, where=f"server {desired.server}", remedy=remedy))
