"""A stage's time counts what this machine slept."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import cast

import pytest

from placewire.controller.agents.agents import Agents
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.records.journal import Journal
from placewire.controller.show.story import Show
from placewire.controller.story.tools import Tools


def test_the_machine_s_sleep_is_part_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    show, clock, slept = Show(), time.clock_gettime, [0.0]
    show.console.file = io.StringIO()
    tools = Tools(cast(Agents, None), cast(Journal, None), NoLauncher(), Path(), Path(), show)
    boot = time.CLOCK_BOOTTIME
    monkeypatch.setattr(time, "clock_gettime", lambda c: clock(c) + slept[0] * (c == boot))
    with tools.stage("job"):
        slept[0] = 1000.0
    assert tools.seconds["job"] >= 1000.0
