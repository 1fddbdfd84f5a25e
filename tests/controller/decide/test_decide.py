"""Tests that `auto` compares every sharing, and that a replay's cluster is slowed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from placewire.controller.decide.decide import decide
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.plan_file import parse_plan
from placewire.controller.records.report import sharing_rows
from placewire.optimizer.chunks import low_water_bytes, window_bytes
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.names import SharingName
from tests.controller.plans import plan_document

pytestmark = pytest.mark.slow


async def test_auto_compares_all_sharings_and_one_rail_and_keeps_them(tmp_path: Path) -> None:
    rows = [OperatorRow(id=name, type="any", seconds={"cpu": 0.01}) for name in "abcd"]
    tensors = [TensorRow("a", ("b", "c"), 100_000), TensorRow("b", ("d",), 100_000)]
    save_graph(build_graph(rows, [*tensors, TensorRow("c", ("d",), 1000)]), tmp_path / "g.json")
    document = plan_document()
    document["job"] = {"kind": "replay", "graph": "g.json", "steps": 1, "time_scale": 50}
    document["solve"] = {"engine": "heft", "time_limit": "60s"}
    document["network"] = {"sharing": "auto", "floor": "70%"}
    plan_file = tmp_path / "plan.yaml"
    plan = parse_plan(document, str(plan_file), base=tmp_path)

    decision = await decide(plan, plan_file, NoLauncher(), tmp_path / "cache", lambda text: None)
    assert [one.sharing for one in decision.considered] == list(get_args(SharingName))
    assert decision.placement in decision.considered
    least = min(one.step_seconds for one in decision.considered)
    assert decision.placement.step_seconds <= least * 1.01
    rows_shown = sharing_rows(decision.compared, decision.placement)
    assert [row.chosen for row in rows_shown].count(True) == 1
    assert (rows_shown[-1].sharing, rows_shown[-1].rails) == ("unshaped", ("a",))
    for one in decision.compared:
        assert one.floor == 0.7
        assert one.cluster.setup_latency_seconds == pytest.approx(50 * 200e-6)
        assert one.cluster.intra_server_bits_per_second == pytest.approx(10e9 / 50)
        assert one.step_seconds >= 50 * 0.03
        for nic in one.cluster.servers[0].nics:
            # As much at a time as the NICs hand over for which the lab's stand.
            assert nic.window_bytes == window_bytes(50 * nic.rate_bits_per_second)
            assert nic.low_water_bytes == low_water_bytes(50 * nic.rate_bits_per_second)

    said: list[str] = []
    assert await decide(plan, plan_file, NoLauncher(), tmp_path / "cache", said.append) == decision
    assert [text for text in said if text.startswith("solve")] == [
        "solve: auto, from the cache", "solve: unshaped, from the cache",
    ]  # fmt: skip
