"""A plan whose rates no queue can hold is refused before any agent is asked for a preview."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from placewire.controller.errors import PlanError
from placewire.controller.show.story import Show
from placewire.controller.story.propose import propose
from placewire.controller.story.tools import ApplyRequest, Tools
from tests.controller.plans import plan, plan_document


class SilentAgents:
    """Agents that have dialled in and must not be asked anything."""

    async def wait_for(self, *_: Any, **__: Any) -> None:
        return None


def test_traffic_that_no_queue_can_hold_is_refused_at_its_place(tmp_path: Path) -> None:
    document = plan_document(3)
    traffic = {"s1": {"s2": 1e308, "s3": 5e-324}, "s2": {"s1": 1e303}}
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py", "traffic": traffic}
    of, none = plan(document), cast(Any, None)
    tools = Tools(cast(Any, SilentAgents()), none, none, tmp_path, tmp_path, Show())

    async def yes() -> bool:
        return True

    with pytest.raises(PlanError) as refused:
        asyncio.run(propose(ApplyRequest(of, Path("plan.yaml"), False, yes), tools))
    paths = {path for path, _ in refused.value.mistakes}
    assert paths == {"job.traffic.s1.s3", "job.traffic.s2.s1"}
