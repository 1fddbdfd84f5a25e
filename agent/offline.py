"""`agent status` and `agent restore`: what the command does without the daemon."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from placewire.agent.answers import answered
from placewire.agent.contract.command import AGENT
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import Observation
from placewire.agent.contract.state import ApplyReport, LeaseState
from placewire.agent.drivers.server import Server
from placewire.agent.keep.keeper import Keeper
from placewire.agent.steady import read_steadily
from placewire.agent.store import DamagedError, put_damaged_aside, read_kept, take_lock
from placewire.agent.wiring import build_keeper
from placewire.visible import visible, visible_lines


def status(config: AgentConfig, *, as_json: bool) -> int:
    """Returns 1 where something of Placewire's is broken. Raises EffectError, StoreError."""

    def read() -> tuple[Keeper, Observation]:
        keeper = build_keeper(config, Server(config))
        return keeper, keeper.observe()

    keeper, seen = read_steadily(Path(config.state_dir), read)
    unused = (f"row {row.key} is ours, and no port uses it" for row in seen.state.unused_rows)
    problems = [*seen.state.problems, *unused, *seen.lease.owed]
    if seen.lease.is_in_force:
        found = keeper.read_back(seen.lease.generation)
        due = (change.due_sentence for change in found.deviations)
        problems = [*found.problems, *due, *seen.lease.owed]
    if as_json:
        state, lease = seen.state.model_dump(mode="json"), seen.lease.model_dump(mode="json")
        print(answered({"state": state, "lease": lease, "problems": problems}))
    else:
        print(visible_lines(_text(config.server, seen, problems), indent="  "))
    return 1 if problems else 0


def restore(config: AgentConfig) -> int:
    """Raises AlreadyRunningError, EffectError, StoreError."""
    with take_lock(Path(config.state_dir)):
        keeper = build_keeper(config, Server(config))
        report = keeper.restore(keeper.lease.generation)
        return _tell(config, keeper, report)


def restore_from_marks(config: AgentConfig) -> int:
    """For a server whose state on disk is lost or damaged. Raises AlreadyRunningError, EffectError,
    OSError, StoreError."""
    directory = Path(config.state_dir)
    with take_lock(directory):
        try:
            read_kept(directory)
        except DamagedError as error:
            print(f"{error}", file=sys.stderr)
            for path in put_damaged_aside(directory):
                print(f"{config.server}: put aside: {path}")
        keeper = build_keeper(config, Server(config))
        if not keeper.lease.is_idle:
            print(
                f"{config.server}: the state on disk knows what is here: {_lease(keeper.lease)}; "
                f"`{AGENT} restore` undoes that",
                file=sys.stderr,
            )
            return 1
        return _tell(config, keeper, keeper.restore_from_marks())


def give_up(config: AgentConfig, nic: str) -> int:
    """Returns 1 where nothing is owed to that NIC. Raises AlreadyRunningError, EffectError,
    StoreError."""
    with take_lock(Path(config.state_dir)):
        said = build_keeper(config, Server(config)).give_up(nic)
    for sentence in said:
        print(f"{config.server}: given up: {sentence}")
    if not said:
        print(f"{config.server}: nothing is owed to a NIC {nic}", file=sys.stderr)
    return 0 if said else 1


def _tell(config: AgentConfig, keeper: Keeper, report: ApplyReport) -> int:
    for change in report.changes:
        print(visible(f"  {change.action:8} {change.collection:12} {change.key}"))
    for refusal in report.refusals:
        print(visible(refusal.sentence), file=sys.stderr)
    if report.succeeded:
        print(f"{config.server}: {_lease(keeper.lease)}")
    return 0 if report.succeeded else 1


def _text(server: str, seen: Observation, problems: list[str]) -> str:
    state = seen.state
    lines = [f"{server}: {_lease(seen.lease)}"]
    for bridge in state.bridges:
        addresses = ", ".join(a.address for a in state.addresses if a.interface == bridge.name)
        lines.append(f"  {bridge.name} over {bridge.nic}: {addresses or 'no address'}")
        for queue in state.queues:
            if queue.nic == bridge.nic:
                lines.append(
                    f"    queue {queue.queue_id}: {queue.min_bits_per_second / 1e6:g} to "
                    f"{queue.max_bits_per_second / 1e6:g} Mbit/s, {queue.purpose}"
                )
    lines += [f"  PROBLEM {problem}" for problem in problems]
    return "\n".join(lines)


def _lease(lease: LeaseState) -> str:
    text = "nothing in force"
    if not lease.is_idle:
        text = f"{lease.phase}, generation {lease.generation} of plan {lease.plan_name}"
    if lease.expires_unix is not None:
        text += f", {lease.expires_unix - time.time():.0f} s left"
    return f"{text} ({lease.detail})" if lease.detail else text
