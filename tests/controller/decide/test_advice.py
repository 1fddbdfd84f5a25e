"""`controller advise` measures a plan's model, and has the optimizer compare; it asks no agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.decide.advice import advise
from placewire.controller.errors import PlanError
from tests.controller.decide.test_variants import Asking
from tests.controller.plans import plan, plan_document

pytestmark = pytest.mark.slow


def advised(asking: Asking, *, as_json: bool) -> str:
    return asyncio.run(
        advise(
            asking.plan,
            Path("plan.yaml"),
            asking.servers,  # type: ignore[arg-type]
            asking.cache,
            asking.said.append,
            as_json=as_json,
        )
    )


def asking(cache: Path, **job: Any) -> Asking:
    made = Asking(cache, **job)
    solve = made.plan.solve.model_copy(update={"time_limit_seconds": 20.0})
    made.plan = made.plan.model_copy(update={"solve": solve})
    return made


def test_every_variant_is_measured_whatever_number_the_plan_has(tmp_path: Path) -> None:
    one = asking(tmp_path, accumulate=2)
    document = json.loads(advised(one, as_json=True))
    assert one.servers.asked == [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2)]
    step = {row["name"]: row["step_seconds"] for row in document["rows"]}
    assert {"placewire", "one device"} <= step.keys()
    # Each of these steps takes 0.4 s on one device, and its parts need nothing of each other.
    assert step["one device"] == pytest.approx(0.401, rel=0.01)
    assert document["bound_seconds"] <= step["placewire"] < 0.25
    assert document["advice"].startswith("take placewire")


def test_the_table_is_for_people(tmp_path: Path) -> None:
    lines = advised(asking(tmp_path), as_json=False).splitlines()
    assert any(line.startswith("placewire ") for line in lines)
    assert all(len(line) <= 100 for line in lines)


def test_what_needs_the_whole_batch_is_told_and_compared_nonetheless(tmp_path: Path) -> None:
    one = asking(tmp_path)
    one.servers.whole_batch = "norm normalises over the batch"
    assert "take placewire" in advised(one, as_json=False)
    told = [line for line in one.said if line.startswith("norm normalises over the batch")]
    assert len(told) == 1 and "ddp" in told[0]


def test_a_profile_is_refused_because_it_is_of_one_variant(tmp_path: Path) -> None:
    file = tmp_path / "graph.json.gz"
    file.touch()
    one = asking(tmp_path, profile=str(file), accumulate=1, shards=1, recompute="none")
    with pytest.raises(PlanError, match=r"job\.profile.*leave it out"):
        advised(one, as_json=False)
    assert one.servers.asked == []


def test_a_script_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    one = asking(tmp_path)
    document = plan_document()
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    one.plan = plan(document)
    with pytest.raises(PlanError, match=r"job\.kind.*torchrun"):
        advised(one, as_json=False)
    assert one.servers.asked == []
