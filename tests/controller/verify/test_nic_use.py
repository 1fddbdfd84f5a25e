"""The NICs are watched while a job runs: what agents' counters say, at most so many samples."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest

from placewire.agent.contract.measurement import InterfaceCounters
from placewire.agent.contract.messages import Counters
from placewire.controller.agents.agents import Agents
from placewire.controller.errors import AgentUnreachable
from placewire.controller.verify.nic_use import MOST_SAMPLES, NicWatch
from tests.controller.change.test_change import ToldAgents
from tests.controller.plans import plan, plan_document


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleeping moves, as far as it was asked to. Returns [the time]."""
    now, sleep = [100.0], asyncio.sleep

    async def moves(seconds: float) -> None:
        now[0] += seconds
        await sleep(0)

    monkeypatch.setattr("placewire.controller.verify.nic_use.time.monotonic", lambda: now[0])
    monkeypatch.setattr("placewire.controller.verify.nic_use.asyncio.sleep", moves)
    return now


async def watched(now: list[float], seconds: float, agents: ToldAgents) -> NicWatch:
    watch = NicWatch(cast(Agents, agents), plan(plan_document(2)))
    task = asyncio.create_task(watch.watch())
    begun = now[0]
    step = 0
    while now[0] < begun + seconds:
        await asyncio.tasks.sleep(0)
        if now[0] >= begun + 10 * (step + 1):
            watch.step_ended(step)
            step += 1
    task.cancel()
    return watch


def counting(
    now: list[float], silent: tuple[float, float] = (0.0, 0.0), anew: float = math.inf
) -> ToldAgents:
    """Every NIC sends 1000 bytes a second, and receives 10. silent: s2 is between these times.
    anew: when every NIC is made anew, and counts from 0."""

    def answer(server: str, request: Any) -> Counters:
        if server == "s2" and silent[0] <= now[0] - 100.0 < silent[1]:
            raise AgentUnreachable([server])
        counted = now[0] if now[0] < 100.0 + anew else now[0] - 100.0 - anew
        return Counters(
            counters=tuple(
                InterfaceCounters(
                    interface=name,
                    transmit_bytes=int(1000 * counted),
                    receive_bytes=int(10 * counted),
                )
                for name in request.interfaces
            )
        )

    return ToldAgents(answer)


async def test_every_nic_is_sampled_once_a_second_with_the_steps(asleep: list[float]) -> None:
    watch = await watched(asleep, 30.0, counting(asleep))
    use = watch.use()
    assert use is not None and use.seconds[:3] == (0.0, 1.0, 2.0)
    assert [(row.server, row.nic) for row in use.nics] == [
        (server, nic) for server in ("s1", "s2") for nic in ("nic0", "nic1")
    ]
    assert use.nics[0].sent_bytes[:3] == (100_000, 101_000, 102_000)
    assert use.nics[3].received_bytes[:2] == (1000, 1010)
    assert use.step_end_seconds == (10.0, 20.0, 30.0)


async def test_what_nics_sent_counts_from_the_first_sample_on(asleep: list[float]) -> None:
    watch = NicWatch(cast(Agents, counting(asleep)), plan(plan_document(2)))
    assert watch.sent_bytes() == {}
    # s2 is silent at the end: what it had sent before stays.
    watch = await watched(asleep, 5_000.0, counting(asleep, silent=(4_000.0, 9_000.0)))
    sent = watch.sent_bytes()
    assert sent.keys() == {(s, nic) for s in ("s1", "s2") for nic in ("nic0", "nic1")}
    assert sent["s1", "nic0"] == pytest.approx(5_000_000, rel=0.02)
    assert sent["s2", "nic0"] == pytest.approx(4_000_000, rel=0.02)


async def test_a_nic_that_is_made_anew_counts_on(asleep: list[float]) -> None:
    watch = await watched(asleep, 1_000.0, counting(asleep, anew=700.0))
    assert watch.sent_bytes()["s1", "nic0"] == pytest.approx(1_000_000, rel=0.02)


async def test_of_many_steps_groups_have_the_end_of_their_last(
    asleep: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewire.controller.verify.nic_use.MOST_STEP_ENDS", 100)
    watch = await watched(asleep, 2.5, counting(asleep))
    for step in range(7, 7 + 1_001):
        asleep[0] = 200.0 + step
        watch.step_ended(step)
    use = watch.use()
    assert use is not None and (use.first_step, use.steps_each) == (7, 16)
    ends = [100.0 + step for step in range(7, 7 + 1_001)]
    assert use.step_end_seconds == (*ends[15::16], ends[-1])


async def test_a_silent_server_has_no_part_in_a_sample(asleep: list[float]) -> None:
    use = (await watched(asleep, 8.0, counting(asleep, silent=(3.0, 5.0)))).use()
    assert use is not None
    of_second = use.nics[2].sent_bytes
    assert [count is None for count in of_second[:7]] == [False] * 3 + [True] * 2 + [False] * 2
    assert None not in use.nics[0].sent_bytes


async def test_a_long_job_has_fewer_samples_over_its_whole_time(asleep: list[float]) -> None:
    use = (await watched(asleep, 5_000.0, counting(asleep))).use()
    assert use is not None and len(use.seconds) <= MOST_SAMPLES
    assert use.seconds[0] == 0.0 and use.seconds[-1] > 4_900
    assert all(len(row.sent_bytes) == len(use.seconds) for row in use.nics)


async def test_a_job_that_is_too_short_shows_nothing(asleep: list[float]) -> None:
    watch = NicWatch(cast(Agents, counting(asleep)), plan(plan_document(2)))
    assert watch.use() is None
    task = asyncio.create_task(watch.watch())
    for _ in range(4):
        await asyncio.tasks.sleep(0)
    task.cancel()
    assert watch.use() is None or len(watch._samples) > 1


async def test_a_large_cluster_has_fewer_samples_of_each(asleep: list[float]) -> None:
    document = plan_document(120)
    watch = NicWatch(cast(Agents, counting(asleep)), plan(document))
    task = asyncio.create_task(watch.watch())
    while asleep[0] < 100.0 + 4_000:
        await asyncio.tasks.sleep(0)
    task.cancel()
    use = watch.use()
    assert use is not None
    assert sum(2 * len(row.sent_bytes) for row in use.nics) <= 2 * 120 * 2 * 61
