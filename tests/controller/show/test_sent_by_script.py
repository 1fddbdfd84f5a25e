"""What a script's servers send is told while it runs, and does not drown a long run's output."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from placewire.controller.decide.traffic import decide_traffic
from placewire.controller.plan.job import TorchrunJob
from placewire.controller.show.story import Show
from placewire.job.contract.specification import Carried
from tests.controller.plans import plan, plan_document

HOUR = 3600


def told(tmp_path: Path, servers: int, sent: Mapping[int, int]) -> list[list[str]]:
    """What is printed at each time, in seconds, at which rank 0 has sent so much."""
    document = plan_document(servers)
    document["network"]["sharing"] = "job"
    document["job"] = {"kind": "torchrun", "script": str(tmp_path / "train.py")}
    (tmp_path / "train.py").write_text("")
    script = plan(document)
    assert isinstance(script.job, TorchrunJob)
    show = Show()
    show.console.file = io.StringIO()
    show.console.width = 1000
    show.decision(decide_traffic(script, script.job, tmp_path))
    found = []
    for seconds, some in sent.items():
        show.console.file = io.StringIO()
        show.event(Carried(rank=0, seconds=seconds, sent_bytes={"a": some, "b": 0}))
        found.append(show.console.file.getvalue().splitlines())
    return found


def test_nothing_is_told_of_one_server_which_has_nobody_to_send_to(tmp_path: Path) -> None:
    assert told(tmp_path, 1, dict.fromkeys(range(60, HOUR, 60), 0)) == [[]] * 59


def test_what_is_sent_is_told_at_doubling_intervals(tmp_path: Path) -> None:
    found = told(tmp_path, 2, {minute * 60: minute << 30 for minute in range(1, 601)})
    lines = {minute: lines for minute, lines in enumerate(found, start=1) if lines}
    assert list(lines) == [1, 3, 7, 15, 31, 63, 127, 255, 511]
    assert lines[3][0].endswith("rank 0's server has sent 3.0 GiB on a, 0 B on b")


@pytest.mark.parametrize("trained_minutes", [0, 2, 600])
def test_that_nothing_is_sent_any_more_is_told_after_a_minute_and_then_ever_less_often(
    tmp_path: Path, trained_minutes: int
) -> None:
    sent = {minute * 60: min(minute, trained_minutes) << 20 for minute in range(1, 1201)}
    idle = {minute - trained_minutes: line for minute, line in idle_lines(tmp_path, sent)}
    assert list(idle)[:5] == [1, 2, 4, 8, 16] and len(idle) < 12
    assert "next to nothing for 60 s: its script" in idle[1]
    assert "next to nothing for 480 s: its script" in idle[8]


def test_a_script_that_begins_late_and_then_hangs_is_told_of_soon(tmp_path: Path) -> None:
    """It reads its data for an hour, trains for seven minutes, and hangs."""
    sent = {minute * 60: max(0, min(minute, 70) - 63) << 20 for minute in range(1, 121)}
    hangs = [minute for minute, _ in idle_lines(tmp_path, sent) if minute > 63]
    assert hangs[:3] == [72, 74, 78]


@pytest.mark.parametrize("pause_minutes", [1, 5, 30])
def test_a_script_that_pauses_again_and_again_is_not_told_of_each_time(
    tmp_path: Path, pause_minutes: int
) -> None:
    sent = {minute * 60: minute // (pause_minutes + 1) << 20 for minute in range(1, 2001)}
    assert len(idle_lines(tmp_path, sent)) < 20


def idle_lines(tmp_path: Path, sent: Mapping[int, int]) -> list[tuple[int, str]]:
    return [
        (minute, line)
        for minute, lines in enumerate(told(tmp_path, 2, sent), start=1)
        for line in lines
        if "next to nothing" in line
    ]
