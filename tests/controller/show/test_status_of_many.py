"""The status of many servers stays short, and shows the servers that are not as the others."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping

import pytest

from placewire.agent.contract.messages import Observation, ReadBackResult
from placewire.agent.contract.state import Change, LeaseState, ObservedState
from placewire.controller.launch.job_status import JobStatus
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.show.story import Show

MANY = tuple(f"s{k + 1}" for k in range(32))
NOW = 1_800_000_000.0
AS_DECIDED = ReadBackResult(deviations=(), problems=())
QUEUES = tuple(
    Change(action="add", collection="queues", key=f"nic{nic} queue {k}", before=None, after="{}")
    for nic in range(3) for k in range(31)
)  # fmt: skip


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def _in_force(server: str, detail: str = "") -> Observation:
    number = MANY.index(server)
    lease = LeaseState(
        phase="staged", generation=4 + number % 3, plan_name="small", plan_digest="d" * 64,
        expires_unix=NOW + 20 + number % 5, detail=detail,
    )  # fmt: skip
    return Observation(state=ObservedState(), lease=lease)


def _told(
    observations: Mapping[str, Observation | None],
    results: Mapping[str, ReadBackResult],
    job: JobStatus | None = None,
    *,
    full: bool = False,
) -> list[str]:
    show = Show(every_change=full)
    show.console.file = printed = io.StringIO()
    show.console.width = 100
    show.status(observations, results, job)
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    return lines


def _rows(lines: list[str]) -> list[list[str]]:
    return [[c.strip() for c in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


def test_servers_that_have_the_same_share_a_row_and_others_have_their_own() -> None:
    observations = {server: _in_force(server) for server in MANY} | {"s7": None}
    results = dict.fromkeys((server for server in MANY if server != "s7"), AS_DECIDED)
    lines = _told(observations, results)
    assert len(lines) < 12
    names = " ".join(row[0] for row in _rows(lines))
    assert names == "s1, s2, s3 … s32 (31 servers) s7"
    assert [row[:2] for row in _rows(lines)][-1] == ["s7", "unreachable"]
    (row,) = [row for row in _rows(lines) if row[1] == "staged"]
    assert row[4:] == ["4 to 6", "20 to 24 s", "as decided"]
    full = _rows(_told(observations, results, full=True))
    assert [row[0] for row in full] == list(MANY)
    assert full[0][4:] == ["4", "20 s", "as decided"]


def test_what_is_not_as_decided_is_counted_and_what_many_say_is_said_once() -> None:
    off = ReadBackResult(deviations=QUEUES, problems=("a queue is missing",))
    observations = {server: _in_force(server, "was put off") for server in MANY}
    lines = _told(observations, dict.fromkeys(MANY, off))
    assert len(lines) < 20
    assert "s1, s2, s3 … s32: 93 to add on each of 32 servers" in lines
    assert "  + 93 queues" in lines
    assert "s1, s2, s3 … s32: a queue is missing" in lines
    assert "s1, s2, s3 … s32: was put off" in lines
    full = _told(observations, dict.fromkeys(MANY, off), full=True)
    assert sum("queue 30" in line for line in full) == 3 * len(MANY)
    assert "s32: a queue is missing" in full and "s32: was put off" in full


def test_sentences_of_which_each_is_another_are_cut() -> None:
    problems = tuple(f"queue {k} is missing" for k in range(500))
    results = {server: ReadBackResult(deviations=(), problems=problems[k * 15 : (k + 1) * 15])
               for k, server in enumerate(MANY)}  # fmt: skip
    observations = {server: _in_force(server) for server in MANY}
    lines = _told(observations, results)
    assert len(lines) < 60 and lines[-1] == "440 more; --full shows each"
    assert sum("is missing" in line for line in _told(observations, results, full=True)) == 480


def test_ranks_of_many_servers_are_told_in_a_line() -> None:
    ranks = tuple(RunningProgram(server, 100 + k, 60.0 + k) for k, server in enumerate(MANY))
    job = JobStatus(ranks, "process 7", None, None)
    assert "32 ranks run on s1, s2, s3 … s32, for 60 to 91 s; --full shows each" in _told(
        {}, {}, job
    )
    full = _told({}, {}, job, full=True)
    assert sum("a rank runs on" in line for line in full) == 32
    few = JobStatus(ranks[:3], "process 7", None, None)
    assert sum("a rank runs on" in line for line in _told({}, {}, few)) == 3
