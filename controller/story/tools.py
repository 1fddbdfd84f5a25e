"""What a command asks of `apply`, and the agents, journal, launcher and console that it uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from placewire.controller.agents.agents import Agents
from placewire.controller.agents.boot_clock import boot_seconds
from placewire.controller.launch.launcher import Launcher
from placewire.controller.metrics.run_state import RunState
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal
from placewire.controller.show.story import Show
from placewire.controller.story.preview_file import PreviewFile


@dataclass(frozen=True)
class ApplyRequest:
    """network_only: whether to stop before the job. confirm: asked before a change. preview: the
    only change that may be made; None: any. measured: whether to measure promised rates."""

    plan: Plan
    plan_file: Path
    network_only: bool
    confirm: Callable[[], Awaitable[bool]]
    preview: PreviewFile | None = None
    measured: bool = True


@dataclass(frozen=True)
class Tools:
    """seconds: how long each stage took. notes: what whoever reads the run's report should know.
    run: what its metrics show."""

    agents: Agents
    journal: Journal
    launcher: Launcher
    cache: Path
    logs: Path
    show: Show
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    run: RunState = field(default_factory=RunState)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        # Servers go on while this machine sleeps, and what they tell is judged by these seconds.
        started = boot_seconds()
        self.show.stage(name)
        try:
            yield
        finally:
            self.seconds[name] = boot_seconds() - started
