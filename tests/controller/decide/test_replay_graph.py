"""Tests that a replay's graph file that cannot be read is reported as a mistake of the plan."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from placewire.controller.decide.decide import decide
from placewire.controller.errors import PlanError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.plan_file import parse_plan
from tests.controller.plans import plan_document

WHOLE = gzip.compress(json.dumps({"version": 1, "operators": list(range(2000))}).encode())
BROKEN = {
    "cut short": WHOLE[: len(WHOLE) // 2],
    "damaged": WHOLE[:40] + bytes(40) + WHOLE[80:],
    "only its first bytes": WHOLE[:2],
    "no JSON": b"{",
    "no text": b"\xff\xfe{}",
    "no graph": b"[]",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_graph_that_cannot_be_read_is_the_plans_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "graph.json.gz").write_bytes(BROKEN[name])
    document = plan_document()
    document["job"] = {"kind": "replay", "graph": "graph.json.gz", "steps": 1}
    plan_file = tmp_path / "plan.yaml"
    read = parse_plan(document, str(plan_file), base=tmp_path)
    with pytest.raises(PlanError) as raised:
        await decide(read, plan_file, NoLauncher(), tmp_path / "cache", print)
    assert [path for path, _ in raised.value.mistakes] == ["job.graph"]
    assert "graph.json.gz" in str(raised.value)
