"""Replays jobs in a lab, one after the other; replays.py starts it on the lab's controller.

    python -m benchmarks.job.in_lab LAB < JOBS > OUTCOMES

JOBS and OUTCOMES are JSON, one line per job. Each job's network is staged without a measurement,
held while its ranks run, and restored. A neighbour's flows run beside a job from the end of its
first step.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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
from placewire.controller.records.step_record import StepRecord
from placewire.job.contract.specification import RankEvent, RankSpec, StepDone
from placewire.optimizer.placement import Placement, load_placement

CONTROLLER_TCP_PORT = 7440
# The flows of the neighbour on each rail, in each direction: more than any fair share holds back.
FLOWS = 8
FIRST_TCP_PORT = 43000
# The time in which a neighbour's flows leave slow start.
SETTLE_SECONDS = 1.0


class Neighbour:
    """Greedy flows between a server of the job and a host that is not part of it, counted by what
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
        """Ends the flows; returns their bits per second by direction, over all rails, between two
        times of time.monotonic(). since: None for when the flows had settled."""
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
            *self._lab.inside_server(server, argv), env=self._lab.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._processes.append(process)
        return process


def _mean_rate(report: Mapping[str, Any], begin: float, end: float) -> float:
    """The mean rate over the intervals between these seconds of the client's run."""
    sums = [interval["sum"] for interval in report["intervals"]]
    within = [one["bits_per_second"] for one in sums if one["start"] >= begin and one["end"] <= end]
    return sum(within) / len(within) if within else 0.0


async def replay(
    job: Mapping[str, Any], lab: Lab, agents: Agents, journal: Journal
) -> dict[str, Any]:
    neighbour = Neighbour(lab, **job["neighbour"]) if job["neighbour"] else None
    async with staged(job, agents, journal) as (plan, placement, change):
        files = Path(job["placement"]), Path(job["graph"])
        specs = [
            RankSpec.model_validate(spec.model_dump() | job["spec"])
            for spec in rank_specs(plan, placement, *files)
        ]
        return await change.while_held(_run(lab, specs, neighbour))


async def _run(lab: Lab, specs: Sequence[RankSpec], neighbour: Neighbour | None) -> dict[str, Any]:
    starting: list[asyncio.Task[None]] = []
    ended, told = 0.0, StepRecord(len(specs))

    def on_event(event: RankEvent) -> None:
        nonlocal ended
        if isinstance(event, StepDone):
            ended = time.monotonic()
            told.add(event)
            if neighbour is not None and not starting:
                starting.append(asyncio.create_task(neighbour.start()))

    got: dict[str, float] = {}
    try:
        await run_ranks(LabLauncher(lab), specs, on_event)
    finally:
        for task in starting:
            await task
        if neighbour is not None:
            got = await neighbour.stop(ended)
    return {"step_seconds": told.seconds(told.done(0), range(len(specs))), "neighbour": got}


@asynccontextmanager
async def staged(
    asked: Mapping[str, Any], agents: Agents, journal: Journal
) -> AsyncIterator[tuple[Plan, Placement, NetworkChange]]:
    """Stages the network of a request, compiled for what each server's agent can do."""
    plan = parse_plan(asked["plan"], "plan", Path.cwd())
    placement = load_placement(Path(asked["placement"]))
    servers = [server.name for server in plan.cluster.servers]
    await agents.wait_for(servers, timeout_seconds=20)
    hello = {server: agents.hello[server] for server in servers}
    desired = compile_network(
        plan,
        placement,
        {server: h.capabilities for server, h in hello.items()},
        {s: journal.next_generation(s, h.lease.highest_generation) for s, h in hello.items()},
    )
    async with NetworkChange(agents, journal, desired) as change:
        await change.stage()
        yield plan, placement, change


def answer_lines(
    measure: Callable[[Mapping[str, Any], Lab, Agents, Journal], Awaitable[Any]],
) -> None:
    """Measures each request that a line of standard input holds, and prints the outcome on a line.

    The lab named on the command line has its agents linked to this process.
    """
    lab = find_lab(sys.argv[1])
    if lab is None:
        raise SystemExit(f"there is no lab {sys.argv[1]}")
    requests = [json.loads(line) for line in sys.stdin]

    async def answer() -> None:
        authority = Authority.load(lab.state_directory / "ca")
        with Journal.open(lab.state_directory) as journal:
            async with Agents.listening("0.0.0.0", CONTROLLER_TCP_PORT, authority) as agents:
                for request in requests:
                    outcome = await measure(request, lab, agents, journal)
                    print(json.dumps(outcome), flush=True)

    asyncio.run(answer())


if __name__ == "__main__":
    answer_lines(replay)
