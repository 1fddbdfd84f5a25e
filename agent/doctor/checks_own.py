"""Finds problems of the agent itself: its state, its files, and what it left behind. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from placewire.agent.contract.command import AGENT
from placewire.agent.contract.diagnosis import Finding
from placewire.agent.doctor.facts import Facts
from placewire.agent.reconcile.unknown_marks import TAKE_BACK, unknown_marks

# The audit logs take 36 MiB at most; the state takes a few hundred KiB.
COMFORTABLE_BYTES = 64 * 1024 * 1024
LEAST_BYTES = 4 * 1024 * 1024
_MEBIBYTE = 1024 * 1024


def own_findings(facts: Facts) -> Iterator[Finding]:
    own = facts.own
    for path in own.unreadable_files:
        yield Finding(
            severity="error", what=f"{facts.agent_user} cannot read it", where=path,
            why="without it the agent cannot identify itself to the controller",
            remedy=f"controller authority issue {facts.server} --out DIR, and bring the files "
            "here; or correct its owner",
        )  # fmt: skip
    if own.clock_synchronised is False:
        yield Finding(
            severity="warning", what="is not synchronised", where="clock",
            why="certificates are checked against it, and people compare servers' logs by it",
            remedy="timedatectl set-ntp true, or install chrony",
        )  # fmt: skip
    yield from _disk(facts)
    yield from _lease(facts)
    yield from _left(facts)


def _disk(facts: Facts) -> Iterator[Finding]:
    own = facts.own
    if own.free_bytes < COMFORTABLE_BYTES:
        yield Finding(
            severity="error" if own.free_bytes < LEAST_BYTES else "warning",
            what=f"has {own.free_bytes / _MEBIBYTE:.1f} MiB left", where=own.state_dir,
            why="every change is written to disk first: with a full disk, every plan is refused",
            remedy=f"df -h {own.state_dir}",
        )  # fmt: skip
    if own.state_unreadable is not None:
        yield Finding(
            severity="error", what=own.state_unreadable, where=own.state_dir,
            why="the agent cannot know what was there before",
            remedy=f"chown -R {facts.agent_user} {own.state_dir}, if permissions are the cause",
        )  # fmt: skip


def _lease(facts: Facts) -> Iterator[Finding]:
    lease = facts.own.lease
    if lease is None:
        return
    if lease.phase == "failed":
        yield Finding(
            severity="error", what=f"restoring failed: {lease.detail}",
            where=f"generation {lease.generation}",
            why="the network is not as it was before",
            remedy="remove the cause; the agent tries again by itself",
        )  # fmt: skip
    elif not lease.is_idle and not facts.own.agent_running:
        yield Finding(
            severity="error", what=f"generation {lease.generation} is {lease.phase}, and no agent "
            "runs", where="agent", why="nothing restores the network when a lease runs out",
            remedy=f"systemctl start placewire-agent, or {AGENT} restore",
        )  # fmt: skip


def _left(facts: Facts) -> Iterator[Finding]:
    """Finds what has our mark, but belongs to no state in force."""
    observed = facts.observed
    for problem in observed.problems:
        yield Finding(
            severity="warning", what=problem, where="ours",
            why="a plan's promises may not hold", remedy=f"{AGENT} status shows what is due",
        )  # fmt: skip
    for row in observed.unused_rows:
        yield Finding(
            severity="warning", what=f"row {row.key} has our mark, and no port uses it",
            where="ours", why="Open vSwitch never drops it; the next change removes it",
            remedy=f"ovs-vsctl destroy {row.table} {row.uuid}",
        )  # fmt: skip
    for sentence in facts.own.owed:
        yield Finding(
            severity="error", what=sentence, where="ours",
            why="it lost that to a plan, and was away when the plan was undone",
            remedy="bring it back under its name; or stop the agent, "
            f"{AGENT} restore --give-up NIC",
        )  # fmt: skip
    lease = facts.own.lease
    if lease is not None and (unknown := unknown_marks(lease, observed)):
        yield Finding(
            severity="error", what="bear our mark, and no state on this server's disk knows them",
            where=", ".join(unknown),
            why="the state is lost; the agent refuses every change until they are taken back",
            remedy=TAKE_BACK,
        )  # fmt: skip
