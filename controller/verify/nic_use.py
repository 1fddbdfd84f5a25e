"""Watches what every NIC carries while ranks run, by the counters that the agents read."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Mapping
from typing import Any

from placewire.agent.contract.messages import Counters, ReadCounters
from placewire.controller.agents.agents import Agents
from placewire.controller.errors import AgentProblem
from placewire.controller.plan.plan import Plan
from placewire.controller.records.nic_use import NicUse, NicUseRow

# Where there are more samples, every other one is dropped, and the next ones are half as frequent.
# A report has at most so many counts, of all NICs together.
MOST_SAMPLES, _LEAST_SAMPLES, _MOST_COUNTS = 240, 60, 20_000
# Where more steps end, two neighbours become one group, whose end is that of its last step.
MOST_STEP_ENDS = 2**18
_TIMEOUT_SECONDS = 2.0
# Agents of a lab, and the controller of many servers, must not take time from the job.
_SERVERS_A_SECOND = 8.0

# By (server, interface), the bytes that it had (sent, received).
_Sample = Mapping[tuple[str, str], tuple[int, int]]


class NicWatch:
    """`watch` runs beside the job, from its begin until it is cancelled."""

    def __init__(self, agents: Agents, plan: Plan) -> None:
        self._agents, self._plan = agents, plan
        self._pause_seconds = max(1.0, len(plan.cluster.servers) / _SERVERS_A_SECOND)
        nics = sum(len(server.nics) for server in plan.cluster.servers)
        self._most_samples = max(_LEAST_SAMPLES, min(MOST_SAMPLES, _MOST_COUNTS // (2 * nics)))
        self._began = time.monotonic()
        self._samples: list[tuple[float, _Sample]] = []
        self._latest: dict[tuple[str, str], int] = {}
        self._sent: dict[tuple[str, str], int] = {}
        self._first_step: int | None = None
        self._steps_each = 1
        self._step_ends: array[float] = array("d")

    async def watch(self) -> None:
        """A server that does not answer in time has no part in that sample."""
        requests = {
            server.name: ReadCounters(interfaces=tuple(nic.name for nic in server.nics))
            for server in self._plan.cluster.servers
        }
        self._began = due = time.monotonic()
        while True:
            asked = time.monotonic() - self._began
            try:
                answers: Mapping[str, Any] = await self._agents.ask_all(
                    requests, Counters, _TIMEOUT_SECONDS
                )
            except AgentProblem as problem:
                answers = problem.answered
            self._add(asked, answers)
            due = max(due + self._pause_seconds, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    def _add(self, seconds: float, answers: Mapping[str, Counters]) -> None:
        sample = {
            (server, one.interface): (one.transmit_bytes, one.receive_bytes)
            for server, answer in answers.items()
            for one in answer.counters
        }
        self._samples.append((seconds, sample))
        for place, (sent, _) in sample.items():
            before = self._latest.get(place, sent)
            # A counter that fell is a new one, of a NIC that was made anew, and began with 0.
            more = sent - before if sent >= before else sent
            self._sent[place] = self._sent.get(place, 0) + more
            self._latest[place] = sent
        if len(self._samples) > self._most_samples:
            del self._samples[1::2]
            self._pause_seconds *= 2

    def sent_bytes(self) -> Mapping[tuple[str, str], int]:
        """What each NIC, by (server, NIC), has sent from the first sample to the last that it has
        a part in. It never falls."""
        return dict(self._sent)

    def step_ended(self, step: int) -> None:
        """Called once the last rank has told of it, with one step after the other."""
        if self._first_step is None:
            self._first_step = step
        ends, end = self._step_ends, time.monotonic() - self._began
        group = (step - self._first_step) // self._steps_each
        ends.extend([end] * (group + 1 - len(ends)))
        ends[group] = end
        if len(ends) > MOST_STEP_ENDS:
            # Of an odd number the last is alone in its group as yet.
            self._step_ends = ends[1::2] + ends[len(ends) - len(ends) % 2 :]
            self._steps_each *= 2

    def use(self) -> NicUse | None:
        """What was seen; None where there is no time between two samples."""
        if len(self._samples) < 2:
            return None
        rows = [
            self._row(server.name, nic.rail, nic.name, nic.rate_bits_per_second)
            for server in self._plan.cluster.servers
            for nic in server.nics
        ]
        return NicUse(
            seconds=tuple(seconds for seconds, _ in self._samples),
            first_step=self._first_step or 0,
            steps_each=self._steps_each,
            step_end_seconds=tuple(self._step_ends),
            nics=tuple(rows),
        )

    def _row(self, server: str, rail: str, nic: str, rate_bits_per_second: float) -> NicUseRow:
        counted = [sample.get((server, nic)) for _, sample in self._samples]
        return NicUseRow(
            server=server,
            rail=rail,
            nic=nic,
            rate_bits_per_second=rate_bits_per_second,
            sent_bytes=tuple(None if one is None else one[0] for one in counted),
            received_bytes=tuple(None if one is None else one[1] for one in counted),
        )
