"""A line that a rank prints is its report only where the rank can say it; else it is its text."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import placewire.controller.launch.ranks as ranks_module
from placewire.controller.errors import JobFailed
from placewire.controller.launch.local import LocalRank, start_rank
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.of_steps import validation_rows
from placewire.job.contract.specification import (
    Hold,
    ProgramSpec,
    RailInterface,
    RankEvent,
    Saved,
    StepDone,
    Validated,
    ValidationSpec,
)
from tests.controller.launch.rank_programs import PRELUDE, specs

RAILS = (RailInterface(rail="a", interface="pw-nic0", address="10.7.0.1"),)
DONE = {"event": "finished", "rank": 0, "traffic": [], "peak_memory_bytes": 1}
CARRIED = {"event": "carried", "rank": 0, "seconds": 1.0, "sent_bytes": {"a": 5}}
SENT = {"destination": "s2/0", "rail": "a", "bytes": 5}


class Printed:
    """A rank that printed these lines and ended well."""

    rank, server = 0, "s1"

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines

    async def start(self, spec: ProgramSpec) -> Printed:
        return self

    async def output(self) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line

    async def errors(self) -> AsyncIterator[bytes]:
        for line in list[bytes]():
            yield line

    async def wait(self) -> int:
        await asyncio.sleep(0)
        return 0

    def tell(self, hold: Hold) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


async def heard(*told: Any) -> tuple[list[RankEvent], list[str]]:
    """(the events, the text) of a rank 0 on rail `a` that prints these and then finishes."""
    lines = [json.dumps(one).encode() for one in (*told, DONE)]
    spec = ProgramSpec(
        rank=0, world_size=1, device="s1/0", master_address="127.0.0.1", master_tcp_port=29400,
        rail_interfaces=RAILS,
    )  # fmt: skip
    events, text = list[RankEvent](), list[str]()
    await run_ranks(
        Printed(lines), [spec], events.append, on_line=lambda rank, line, error: text.append(line)
    )
    return events, text


async def test_what_a_rank_says_of_itself_is_heard() -> None:
    within = {**SENT, "destination": "s1/1", "rail": ""}
    events, text = await heard(CARRIED, {**DONE, "traffic": [SENT, within]})
    assert [event.event for event in events] == ["carried", "finished", "finished"] and not text


async def test_a_rank_reports_no_more_than_it_was_asked_for(tmp_path: Path) -> None:
    """Steps come one after another, up to the last; and so do checkpoints."""
    source = """
for k in (3, 4, 4, 2, 6, 5, 6, 7, 8, 9, 2**62): step(k)
for k in (4, 2, 4, 8, 9, 2**62): say(event="saved", step=k, path="/x", bytes=1, seconds=1)
for k in range(1000): say(event="noted", notes=["again"])
step(8); finish()
"""
    rank = Here(source, tmp_path)
    spec = specs(1)[0].model_copy(update={"steps": 8})
    events, text = list[RankEvent](), list[str]()
    with pytest.raises(JobFailed, match="before it had finished"):
        await run_ranks(
            rank, [spec], events.append, on_line=lambda rank, line, error: text.append(line)
        )
    assert [e.step for e in events if isinstance(e, StepDone)] == [3, 4, 5, 6, 7]
    assert [e.step for e in events if isinstance(e, Saved)] == [4, 8]
    assert len(events) < 150 and len(text) > 900


async def test_validations_come_as_they_were_asked_for(tmp_path: Path) -> None:
    """One after another, of no more batches than there are, and with names of bounded length."""
    source = """
def validated(step, batches, **more):
    say(event="validated", step=step, batches=batches, seconds=1, **more)
step(0); validated(1, 1); validated(1, 3, loss=2.5, metrics={"accuracy": 0.5}); validated(1, 2)
validated(2, 4); validated(2, 3); validated(2, 3); validated(0, 1); validated(9, 1)
validated(3, 1, metrics={"x" * 65: 1.0}); validated(3, 1, metrics={f"m{k}": 1 for k in range(33)})
for k in range(1, 8): step(k)
finish()
"""
    rank = Here(source, tmp_path)
    asked = specs(1)[0].model_copy(update={"steps": 8})
    for validation, heard_of in ((ValidationSpec(every=1, batches=3), [(1, 1), (1, 3), (2, 3)]),
                                 (None, [])):  # fmt: skip
        spec = asked.model_copy(update={"validation": validation})
        events = list[RankEvent]()
        await run_ranks(rank, [spec], events.append)
        told = [e for e in events if isinstance(e, Validated)]
        assert [(e.step, e.batches) for e in told] == heard_of
        record = JobRecord()
        for event in told:
            record.add(event)
        rows = validation_rows(record.validations)
        assert [(row.step, row.batches) for row in rows] == [(1, 3), (2, 3)][: len(rows)]
        assert not rows or (rows[0].loss, rows[0].metrics) == (2.5, {"accuracy": 0.5})


async def test_what_a_rank_reports_does_not_fill_the_controller_s_memory() -> None:
    """Some of it is held to the job's end, and the model may print what looks like a report."""
    long = {"event": "noted", "rank": 0, "notes": ["x" * 900_000]}
    events, text = await heard(*[long] * 60)
    assert len(events) == 18 + 1 and events[-1].event == "finished" and len(text) == 60 - 18


async def test_events_are_passed_on_and_not_held() -> None:
    """A rank reports for weeks."""
    notes = [{"event": "noted", "rank": 0, "notes": [f"note {k}"]} for k in range(90)]
    rank = Printed([json.dumps(one).encode() for one in (*notes, DONE)])
    passed_on, most = list[weakref.ref[RankEvent]](), 0

    def on_event(event: RankEvent) -> None:
        nonlocal most
        passed_on.append(weakref.ref(event))
        most = max(most, sum(one() is not None for one in passed_on))

    await run_ranks(rank, [specs(1)[0]], on_event)
    assert len(passed_on) == 91 and most <= 2


class Stays(Printed):
    """Rank 0 fails. The others are killed, and do not end, as where they wait for a disk."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__([])
        self.rank, self.server = rank, f"s{rank + 1}"

    async def start(self, spec: ProgramSpec) -> Printed:
        return Stays(spec.rank)

    async def wait(self) -> int:
        if self.rank > 0:
            await asyncio.Event().wait()
        return 1


async def test_each_rank_that_does_not_end_though_killed_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TERMINATE_SECONDS", "_KILL_SECONDS", "_BLAME_SECONDS"):
        monkeypatch.setattr(ranks_module, name, 0.05)
    said = list[str]()
    with pytest.raises(JobFailed, match="rank 0 ended with 1") as failure:
        await run_ranks(Stays(), specs(12), lambda event: None, on_late=said.append)
    each = ", ".join(f"{rank} (s{rank + 1})" for rank in range(1, 12))
    assert said[0].startswith(f"ranks {each} have not ended yet, though killed")
    assert failure.value.remedy == said[0]


async def test_a_rank_that_hangs_at_its_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though others have begun, and it prints. Its time begins once all of that was heard."""
    monkeypatch.setattr(ranks_module, "_LONGEST_LOOK_SECONDS", 0.0)
    heard = set[int]()

    def hear(rank: int) -> None:
        heard.add(rank)
        if heard == {0, 1, 2}:
            monkeypatch.setattr(ranks_module, "_LONGEST_LOOK_SECONDS", 2.0)

    rank = Here(
        """
if rank != 1: step(0)
while True:
    if rank == 1: print("a warning", flush=True)
    time.sleep(0.2)
""",
        tmp_path,
    )
    with pytest.raises(JobFailed) as failure:
        await run_ranks(
            rank,
            specs(3),
            lambda event: hear(event.rank),
            on_line=lambda rank, line, error: hear(rank),
            start_seconds=3,
        )
    assert failure.value.what.startswith("rank 1 (s2) has not begun")
    assert (failure.value.where, failure.value.rank) == ("s2", 1)
    assert "a warning" in failure.value.what
    assert "a model whose function takes so long needs job.start_limit" in failure.value.remedy


async def test_a_silent_job_is_told_what_usually_takes_so_long(tmp_path: Path) -> None:
    rank = Here("step(0); time.sleep(600)", tmp_path)
    with pytest.raises(JobFailed, match="no rank said anything for") as failure:
        await run_ranks(rank, specs(1), lambda event: None, silence_seconds=1.0)
    assert "a `batches(step)` that takes so long is the usual cause" in failure.value.remedy
    assert "print a line from it now and then, as long as it takes less than 10 minutes" in (
        failure.value.remedy
    )


async def test_a_long_start_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a rank has not begun, that nobody says anything is no sign of anything."""
    monkeypatch.setattr(ranks_module, "_SAY_LATE_EVERY_SECONDS", 1.0)
    passed_seconds = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_seconds[0])
    monkeypatch.setattr(ranks_module, "time", clock)
    heard, late = list[RankEvent](), list[str]()
    source = f"""
if rank == 0: step(0)
while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.05)
finish()
"""

    def on_late(text: str) -> None:
        if heard:
            late.append(text)
            passed_seconds[0] = 10_000.0
            if len(late) == 3:
                (tmp_path / "go").touch()

    await run_ranks(
        Here(source, tmp_path), specs(2), heard.append, on_late=on_late, silence_seconds=5_000.0
    )
    assert [event.event for event in heard].count("finished") == 2
    assert late[0].startswith("rank 1 (s2) has not begun after")


class Here:
    """Runs this source as the rank."""

    def __init__(self, source: str, folder: Path) -> None:
        self.file = folder / "rank.py"
        self.file.write_text(PRELUDE + source)

    async def start(self, spec: ProgramSpec) -> LocalRank:
        def command(file: str) -> list[str]:
            return [sys.executable, str(self.file), file]

        return await start_rank(
            spec, command, workdir=self.file.parent, environment=dict(os.environ)
        )


async def test_a_report_is_heard_behind_all_that_was_printed_before(tmp_path: Path) -> None:
    """The rank is gone long before that was read."""
    rank = Here("sys.stdout.write(chr(10) * 190_000); sys.stdout.flush(); finish()", tmp_path)
    events = list[RankEvent]()
    await run_ranks(rank, specs(1), events.append)
    assert [event.event for event in events] == ["finished"]


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
async def test_what_a_rank_left_behind_and_prints_does_not_hide_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """What it left behind prints until the test has ended."""
    monkeypatch.setattr(ranks_module, "_MOST_DRAINS", 3 if stream == "stdout" else 10**9)
    over = tmp_path / "over"
    rank = Here(
        f"""
if os.fork() == 0:
    while not os.path.exists({str(over)!r}):
        print("still here", file=sys.{stream}, flush=True)
        time.sleep(0.05)
    os._exit(0)
os._exit(3)
""",
        tmp_path,
    )
    try:
        with pytest.raises(JobFailed, match="rank 0 ended with 3"):
            await run_ranks(rank, specs(1), lambda event: None)
    finally:
        over.touch()
        # The pipe that it held is closed by this event loop: left to the garbage collector, after
        # the loop, Python 3.11 may raise wherever it then is.
        await asyncio.sleep(0.5)


async def test_an_interrupt_is_heard_beside_ranks_that_print_without_end(tmp_path: Path) -> None:
    rank = Here("while True: sys.stdout.write('x' * 20 + chr(10))", tmp_path)
    heard = asyncio.Event()
    work = asyncio.create_task(
        run_ranks(rank, specs(3), print, on_line=lambda rank, line, error: heard.set())
    )
    await heard.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.parametrize(
    "line",
    [
        {**CARRIED, "rank": 7},
        {**DONE, "rank": 9},
        {"event": "failed", "rank": 1, "what": "it was another"},
        {**CARRIED, "sent_bytes": {"zz": 5}},
        {**DONE, "traffic": [{**SENT, "rail": "zz"}]},
        {**CARRIED, "sent_bytes": {"a": 10**400}},
        {"event": "step", "rank": 0, "step": 0, "seconds": 1e308},
    ],
)
async def test_what_a_rank_cannot_say_is_text_that_it_prints(line: Any) -> None:
    events, text = await heard(line)
    assert [event.event for event in events] == ["finished"]
    assert text == [json.dumps(line)]
