"""Item 6: one controller with 500 agents, of which only the networks are not real."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import ROOT, peak_memory_bytes
from benchmarks.table import Table
from placewire.agent.contract.messages import Observation, Observe
from placewire.agent.contract.state import DesiredState
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.change.change import NetworkChange, preview
from placewire.controller.records.journal import Journal
from tests.agent.states import desired_state
from tests.agent.world import plan as state_of
from tests.free_port import free_port

COUNT, PROCESSES, DROPPING = 500, 4, 100
IDLE_SECONDS, DIAL_SECONDS = 20.0, 180.0
CHANGES_WHILE_DROPPING = 3
MOST_SECONDS, MOST_MEMORY_MB, MOST_IDLE = 10.0, 500.0, 0.05
NAMES = tuple(f"s{number}" for number in range(COUNT))


def tables(_: Path | None) -> Iterable[Table]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority.load(folder / "ca")
        for server in NAMES:
            authority.issue(server, "agent", folder / server, lifetime_seconds=86_400)
        port = free_port()
        with _agents(folder, f"https://127.0.0.1:{port}") as processes:
            rows = asyncio.run(_measured(folder, authority, port, processes))
    yield Table(
        title=f"6. One controller and {COUNT} agents",
        columns=("what", "found", "wanted"),
        rows=rows,
        notes=(
            "Agents: link (mutual TLS), service, state machine and disk are the real ones, in "
            f"{PROCESSES} processes; what they change is in memory. Applied: preview, stage, "
            "commit and keep. Dropping: a link is cut 0.5 to 4 s after it was made, and nothing "
            "comes through for 0.05 to 1.5 s; meanwhile "
            f"{CHANGES_WHILE_DROPPING} changes are applied. Memory: the controller's process at "
            "its most.",
        ),
    )  # fmt: skip


async def _measured(
    folder: Path, authority: Authority, port: int, processes: list[subprocess.Popen[str]]
) -> list[tuple[str, str, str]]:
    began = time.monotonic()
    async with Agents.listening("127.0.0.1", port, authority) as agents:
        await agents.wait_for(NAMES, timeout_seconds=DIAL_SECONDS)
        dialled = time.monotonic() - began
        with Journal.open(folder / "journal") as journal:
            applied = [await apply(agents, journal, number) for number in range(3)]
            idle = await _idle()
            _tell(processes, "drop")
            dropping = [
                await apply(agents, journal, 10 + number)
                for number in range(CHANGES_WHILE_DROPPING)
            ]
            _tell(processes, "steady")
            await agents.wait_for(NAMES, timeout_seconds=30)
            right = await on_decision(agents, 10 + CHANGES_WHILE_DROPPING - 1)
    return [
        (f"all {COUNT} dial in, s", f"{dialled:.1f}", "-"),
        ("applied to all, s", f"{max(applied):.2f}", f"≤ {MOST_SECONDS:g}"),
        (f"the same while {DROPPING} drop and return, s", f"{max(dropping):.2f}", "-"),
        ("then on the last decision", f"{right} of {COUNT}", f"{COUNT} of {COUNT}"),
        ("the controller's memory, MB", f"{peak_memory_bytes() / 2**20:.0f}",
         f"≤ {MOST_MEMORY_MB:g}"),
        ("the controller at rest, of a core", f"{idle:.1%}", f"≤ {MOST_IDLE:.0%}"),
    ]  # fmt: skip


async def apply(agents: Agents, journal: Journal, number: int) -> float:
    """Applies a decision to all agents; returns the seconds from the first request to the last
    confirmation. Raises where an agent is lost."""
    began = time.monotonic()
    desired = _desired(agents, journal, number)
    await preview(agents, desired)
    async with NetworkChange(agents, journal, desired) as change:
        await change.stage()
        await change.commit()
        await change.keep()
    took = time.monotonic() - began
    print(f"    decision {number} on all: {took:.2f} s", file=sys.stderr, flush=True)
    return took


def _desired(agents: Agents, journal: Journal, number: int) -> dict[str, DesiredState]:
    queues = desired_state(1, (10_000_000 + number * 1000, 20_000_000), nics=("nic0",)).queues
    return {
        server: state_of(
            journal.next_generation(server, hello.lease.highest_generation),
            queues=queues, server=server, plan_digest=f"{number}",
        )
        for server, hello in agents.hello.items()
    }  # fmt: skip


async def on_decision(agents: Agents, number: int) -> int:
    """How many servers have this decision in force and kept."""
    found: Mapping[str, Observation] = await agents.ask_all(
        {server: Observe() for server in agents.hello}, Observation, timeout_seconds=30
    )
    return sum(
        one.lease.phase == "committed"
        and one.lease.expires_unix is None
        and one.lease.plan_digest == f"{number}"
        for one in found.values()
    )


async def _idle() -> float:
    """The part of a core that the controller takes while the agents only poll."""
    await asyncio.sleep(2.0)
    before, began = time.process_time(), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    return (time.process_time() - before) / (time.monotonic() - began)


def _tell(processes: list[subprocess.Popen[str]], line: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


@contextmanager
def _agents(folder: Path, url: str) -> Iterator[list[subprocess.Popen[str]]]:
    each = COUNT // PROCESSES
    program = [sys.executable, "-m", "benchmarks.agent.many_agents", str(folder), url]
    processes = [
        subprocess.Popen(
            [*program, str(k * each), str(each), str(DROPPING // PROCESSES)],
            cwd=ROOT, stdin=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
        )
        for k in range(PROCESSES)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
