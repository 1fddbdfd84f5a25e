"""Replays in a lab, one after the other; runs on the lab's controller, started by replays.py.

    python -m benchmarks.job.in_lab LAB < JOBS > OUTCOMES

JOBS and OUTCOMES are JSON, one line each. Each job's network is staged, kept while its ranks run,
and restored; nothing is measured beforehand. A neighbour's flows run beside a job from the end of
its first step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from placewire.agent.contract.state import DesiredState
from placewire.controller.agents.agents import Agents
from placewire.controller.agents.authority import Authority
from placewire.controller.change.change import NetworkChange
from placewire.controller.compile.network import compile_network
from placewire.controller.compile.ranks import rank_specs
from placewire.controller.lab import Lab, find_lab
from placewire.controller.launch.lab import LabLauncher
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.plan.plan import Plan
from placewire.controller.plan.plan_file import parse_plan
from placewire.controller.records.journal import Journal
from placewire.controller.records.report import step_times
from placewire.job.contract.specification import RankEvent, RankSpec, StepDone
from placewire.optimizer.placement import Placement, load_placement

CONTROLLER_TCP_PORT = 7440
# What the neighbour runs in each direction on each rail: more than any fair share can hold back.
FLOWS = 8
FIRST_TCP_PORT = 43000
# Until a neighbour's flows have left slow start.
SETTLE_SECONDS = 1.0


class Neighbour:
    """Greedy flows between a server of the job and a host that is not the job's, counted by what
    arrives. directions: "out" of the job's server, "in" to it."""

    def __init__(
        self, lab: Lab, host: str, server: str, addresses: Sequence[str], directions: Sequence[str]
    ) -> None:
        self._lab, self._host, self._server = lab, host, server
        self._wanted = [(a, d) for a in addresses for d in directions]
        self._processes: list[asyncio.subprocess.Process] = []
        self._clients: dict[tuple[str, str], asyncio.subprocess.Process] = {}
        self._began = 0.0

    async def start(self) -> None:
        for number, (address, direction) in enumerate(self._wanted):
            port = str(FIRST_TCP_PORT + number)
            await self._run(self._host, ["iperf3", "--server", "--one-off", "--port", port])
            await asyncio.sleep(0.1)
            options = ["--reverse"] if direction == "in" else []
            self._clients[address, direction] = await self._run(
                self._server,
                ["iperf3", "--json", "--client", address, "--port", port, "--parallel", str(FLOWS),
                 "--time", "600", "--interval", "0.5", *options],
            )  # fmt: skip
        self._began = time.monotonic()

    async def stop(self, until: float, since: float | None = None) -> dict[str, float]:
        """Bits per second by direction, over all rails; since None: from when the flows had
        settled. Both as time.monotonic() counts."""
        begin = SETTLE_SECONDS if since is None else since - self._began
        found: dict[str, float] = {}
        for (_, direction), client in self._clients.items():
            client.send_signal(2)
            said, _ = await client.communicate()
            rate = _mean_rate(json.loads(said), begin, until - self._began)
            found[direction] = found.get(direction, 0.0) + rate
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        return found

    async def _run(self, server: str, argv: Sequence[str]) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._lab.inside_server(server, argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._lab.environment,
        )
        self._processes.append(process)
        return process


def _mean_rate(report: Mapping[str, Any], begin: float, end: float) -> float:
    """Of the intervals that lie between these seconds of the client's run."""
    sums = [interval["sum"] for interval in report["intervals"]]
    within = [one["bits_per_second"] for one in sums if one["start"] >= begin and one["end"] <= end]
    return sum(within) / len(within) if within else 0.0


async def replay(
    job: Mapping[str, Any], lab: Lab, agents: Agents, journal: Journal
) -> dict[str, Any]:
    plan = parse_plan(job["plan"], "plan", Path.cwd())
    placement_file = Path(job["placement"])
    placement = load_placement(placement_file)
    desired = await compiled(plan, placement, agents, journal)
    specs = [
        RankSpec.model_validate(spec.model_dump() | job["spec"])
        for spec in rank_specs(plan, placement, placement_file, Path(job["graph"]))
    ]
    neighbour = Neighbour(lab, **job["neighbour"]) if job["neighbour"] else None
    async with NetworkChange(agents, journal, desired) as change:
        await change.stage()
        return await change.while_held(_run(lab, specs, neighbour))


async def _run(lab: Lab, specs: Sequence[RankSpec], neighbour: Neighbour | None) -> dict[str, Any]:
    starting: list[asyncio.Task[None]] = []
    ended = 0.0

    def on_event(event: RankEvent) -> None:
        nonlocal ended
        if isinstance(event, StepDone):
            ended = time.monotonic()
            if neighbour is not None and not starting:
                starting.append(asyncio.create_task(neighbour.start()))

    got: dict[str, float] = {}
    try:
        events = await run_ranks(LabLauncher(lab), specs, on_event)
    finally:
        for task in starting:
            await task
        if neighbour is not None:
            got = await neighbour.stop(ended)
    return {"step_seconds": step_times(events), "neighbour": got}


@asynccontextmanager
async def on_controller(name: str) -> AsyncIterator[tuple[Lab, Agents, Journal]]:
    """The lab, with its agents linked to this process."""
    lab = find_lab(name)
    if lab is None:
        raise SystemExit(f"there is no lab {name}")
    state = lab.state_directory
    authority = Authority.load(state / "ca")
    with Journal.open(state) as journal:
        async with Agents.listening("0.0.0.0", CONTROLLER_TCP_PORT, authority) as agents:
            yield lab, agents, journal


async def compiled(
    plan: Plan, placement: Placement, agents: Agents, journal: Journal
) -> dict[str, DesiredState]:
    """By server, for what its agent says that it can; each with a generation of its own."""
    servers = [server.name for server in plan.cluster.servers]
    await agents.wait_for(servers, timeout_seconds=20)
    hello = {server: agents.hello[server] for server in servers}
    return compile_network(
        plan,
        placement,
        {server: h.capabilities for server, h in hello.items()},
        {s: journal.next_generation(s, h.lease.highest_generation) for s, h in hello.items()},
    )


async def main(name: str, jobs: Sequence[Mapping[str, Any]], say: Callable[[str], None]) -> None:
    async with on_controller(name) as (lab, agents, journal):
        for job in jobs:
            say(json.dumps(await replay(job, lab, agents, journal)))


if __name__ == "__main__":
    asyncio.run(
        main(
            sys.argv[1],
            [json.loads(line) for line in sys.stdin],
            lambda line: print(line, flush=True),
        )
    )
