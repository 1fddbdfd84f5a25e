"""How long ranks are waited for, and what a log has no room for. Ranks are stood in for."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import placewire.controller.records.run_log as run_log_module
import placewire.controller.story.job_run as module
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.variants import Variant
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.job import PlacedJob
from placewire.controller.records.job_record import JobRecord
from placewire.controller.records.run_log import RunLog, runs_of
from placewire.controller.show.story import Show
from placewire.controller.story.job_run import run_job
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.job.contract.specification import ProgramSpec, RankEvent, RankSpec, StepDone
from tests.controller.plans import placement, plan, plan_document

STEPS = 300
DECIDED = {"accumulate": 1, "shards": 1, "recompute": "none"}


async def _yes() -> bool:
    return True


async def _run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stood_in: Any, **of_job: Any
) -> tuple[Tools, str, JobRecord]:
    """Runs a job whose ranks `stood_in` stands in for. Returns the tools, the plan's name, and what
    is known of the ranks."""

    async def watch() -> None:
        return None

    monkeypatch.setattr(module, "run_ranks", stood_in)
    document = plan_document(2)
    document["job"] |= of_job
    of = plan(document)
    assert isinstance(of.job, PlacedJob)
    variant = Variant(of.job.model_copy(update=DECIDED), folder / "graph.json", Path())
    made = placement(of, ())
    decision = PlacementDecision(variant, folder / "placement.json", made, (made,))
    show = Show()
    show.console.file = io.StringIO()
    none = cast(Any, None)
    tools = Tools(none, none, NoLauncher(), folder, folder / "logs", show)
    nics = SimpleNamespace(sent_bytes=dict, step_ended=lambda step: None, watch=watch)
    told = JobRecord()
    await run_job(
        ApplyRequest(of, folder / "plan.yaml", False, _yes), tools,
        decision, none, told, cast(Any, nics),
    )  # fmt: skip
    return tools, of.name, told


@pytest.mark.parametrize(
    ("of_job", "seconds"), [({}, (540.0, 600.0)), ({"start_limit": "2h"}, (7200.0, 7260.0))]
)
async def test_ranks_wait_for_one_that_begins_for_as_long_as_the_plan_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_job: dict[str, Any],
    seconds: tuple[float, float],
) -> None:
    """And it is given up here once they have said what they waited for."""
    heard = list[tuple[float, float]]()

    async def run_ranks(
        _: Any, specs: Sequence[ProgramSpec], on_event: Any, *, start_seconds: float, **__: Any
    ) -> None:
        heard.extend(
            (one.timeout_seconds, start_seconds) for one in specs if isinstance(one, RankSpec)
        )

    await _run(tmp_path, monkeypatch, run_ranks, **of_job)
    assert heard and set(heard) == {seconds}


async def test_steps_that_fill_the_log_are_not_called_what_ranks_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_ranks(
        _: Any, specs: Sequence[ProgramSpec], on_event: Callable[[RankEvent], None], **__: Any
    ) -> None:
        for step in range(STEPS):
            for rank in range(len(specs)):
                on_event(StepDone(rank=rank, step=step, seconds=0.1))

    monkeypatch.setattr(run_log_module, "RunLog", partial(RunLog, longest_bytes=4000))
    tools, name, record = await _run(tmp_path, monkeypatch, run_ranks)
    (log,) = runs_of(tools.logs, name)
    lines = log.read_text().splitlines()
    assert record.steps.done(0) == range(STEPS)
    assert lines[0].endswith("| step 0: 0.100 s")
    assert lines[-1].endswith(f"| step {STEPS - 1}: 0.100 s")
    (said_so,) = (line for line in lines if line.startswith("-- "))
    (note,) = tools.notes
    assert str(log) in note and "the log of ranks and steps is larger than 32 MiB" in note
    for told in (said_so, note):
        assert "bytes are left out" in told and "printed" not in told
