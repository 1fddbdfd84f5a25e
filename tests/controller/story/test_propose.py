"""A plan that cannot be applied is refused before any agent is asked for a preview."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from placewire.controller.errors import PlanError, UsageError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.show.story import Show
from placewire.controller.story.propose import propose
from placewire.controller.story.tools import ApplyRequest, Tools
from tests.controller.plans import plan, plan_document


class SilentAgents:
    """Agents that have dialled in and must not be asked anything."""

    async def wait_for(self, *_: Any, **__: Any) -> None:
        return None


class UnaskedAgents:
    """Agents that nobody must even wait for."""


class Unready(NoLauncher):
    """As a lab's or SSH's where the script's interpreter is not there."""

    def require_ready(self) -> NoReturn:
        raise UsageError("'/no/python' runs no Python there", where="job.python", remedy="look")


def _propose(
    document: dict[str, Any], agents: object, launcher: object, folder: Path, *, network_only: bool
) -> None:
    async def yes() -> bool:
        return True

    tools = Tools(cast(Any, agents), cast(Any, None), cast(Any, launcher), folder, folder, Show())
    request = ApplyRequest(plan(document), Path("plan.yaml"), network_only, yes)
    asyncio.run(propose(request, tools))


@pytest.mark.parametrize("launcher", [NoLauncher(), Unready()])
def test_a_job_that_could_not_be_started_is_refused_before_any_agent_is_waited_for(
    tmp_path: Path, launcher: NoLauncher
) -> None:
    document = plan_document(3)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py", "python": "/no/python"}
    with pytest.raises(UsageError, match=r"runs no Python|how to start ranks") as refused:
        _propose(document, UnaskedAgents(), launcher, tmp_path, network_only=False)
    assert refused.value.remedy
    with pytest.raises(AttributeError, match="wait_for"):  # The network alone needs no rank.
        _propose(document, UnaskedAgents(), launcher, tmp_path, network_only=True)


def test_traffic_that_no_queue_can_hold_is_refused_at_its_place(tmp_path: Path) -> None:
    document = plan_document(3)
    traffic = {"s1": {"s2": 1e308, "s3": 5e-324}, "s2": {"s1": 1e303}}
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py", "traffic": traffic}
    with pytest.raises(PlanError) as refused:
        _propose(document, SilentAgents(), NoLauncher(), tmp_path, network_only=True)
    paths = {path for path, _ in refused.value.mistakes}
    assert paths == {"job.traffic.s1.s3", "job.traffic.s2.s1"}
