"""One plan.yaml, one cluster: `optimizer solve --cluster` and `controller apply` read the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.controller.errors import PlanError
from placewire.controller.plan.plan_file import load_plan
from placewire.optimizer.cli import main
from placewire.optimizer.commands.clusters import read_cluster
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.placement import load_placement
from tests.controller.plans import plan, plan_document
from tests.optimizer.cases import cluster
from tests.paths import ROOT

Solve = Callable[..., int]


@pytest.fixture
def solve(tmp_path: Path) -> Solve:
    """Solves two operators on this file's cluster; the placement is in tmp_path."""
    graph = build_graph(
        [OperatorRow(id=i, type="op", seconds={"cpu": 0.5}) for i in "AB"],
        [TensorRow(producer="A", consumers=("B",), bytes=1000)],
    )
    save_graph(graph, tmp_path / "graph.json")

    def run(file: Path) -> int:
        where = ["--cluster", str(file), "--out", str(tmp_path / "placement.json")]
        return main(["solve", str(tmp_path / "graph.json"), *where, "--moves", "100"])

    return run


def written(folder: Path, document: dict[str, Any]) -> Path:
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_whole_plan_gives_the_cluster_that_apply_solves_for(
    tmp_path: Path, solve: Solve, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, plan_document())
    assert solve(file) == 0
    found = load_placement(tmp_path / "placement.json").cluster
    assert found.digest == load_plan(file).payload_cluster.digest
    # 96 % of 50 Mbit/s, 1448 bytes of payload in 1514 of every frame.
    assert found.nic_rates == pytest.approx(50e6 * 0.96 * 1448 / 1514)
    said = capsys.readouterr().err
    assert f"cluster of {file}: 3 servers; line rates as payload; the rest of the plan" in said


def test_the_section_alone_gives_the_same(
    tmp_path: Path, solve: Solve, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, {"cluster": plan_document()["cluster"]})
    assert solve(file) == 0
    assert load_placement(tmp_path / "placement.json").cluster.digest == (
        plan().payload_cluster.digest
    )
    assert "the rest of the plan" not in capsys.readouterr().err


def test_the_rails_of_the_job_are_those_of_apply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = plan_document()
    document["network"]["rails"] = ["b"]
    file = written(tmp_path, document)
    assert read_cluster(file).rails == ("b",)
    assert read_cluster(file).digest == load_plan(file).payload_cluster.digest
    assert "network.rails b" in capsys.readouterr().err


def test_a_json_cluster_and_a_placement_are_read_as_before(tmp_path: Path, solve: Solve) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(cluster(2, (8e7, 8e7)).model_dump_json())
    assert solve(file) == 0
    assert read_cluster(tmp_path / "placement.json").digest == cluster(2, (8e7, 8e7)).digest


def _rate(document: dict[str, Any]) -> None:
    document["cluster"]["servers"][1]["nics"][0]["rate"] = "fast"


def _unknown(document: dict[str, Any]) -> None:
    document["cluster"]["servers"][1]["nics"][0]["speed"] = 1


def _double(document: dict[str, Any]) -> None:
    document["cluster"]["servers"][1]["name"] = "s1"


def _rails(document: dict[str, Any]) -> None:
    document["network"]["rails"] = ["c"]


def _subnets(document: dict[str, Any]) -> None:
    document["cluster"]["servers"][1]["nics"][0]["address"] = "10.8.0.2/24"


@pytest.mark.parametrize("edit", [_rate, _unknown, _double, _rails, _subnets])
def test_a_mistake_is_told_as_apply_tells_it(
    tmp_path: Path,
    solve: Solve,
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[dict[str, Any]], None],
) -> None:
    document = plan_document()
    edit(document)
    file = written(tmp_path, document)
    assert solve(file) == 3
    said = capsys.readouterr().err
    with pytest.raises(PlanError) as raised:
        load_plan(file)
    for place, message in raised.value.mistakes:
        assert f"{file}: {place}: {message}" in said


def test_what_only_apply_has_measured_is_asked_for(
    tmp_path: Path, solve: Solve, capsys: pytest.CaptureFixture[str]
) -> None:
    document = plan_document()
    document["cluster"]["setup_latency"] = "measured"
    file = written(tmp_path, document)
    assert solve(file) == 3
    assert f"{file}: cluster.setup_latency: measured: only `contro" in capsys.readouterr().err
    assert load_plan(file).cluster.setup_latency_seconds is None


def test_all_mistakes_are_told_at_once_and_those_elsewhere_in_the_plan_not_at_all(
    tmp_path: Path, solve: Solve, capsys: pytest.CaptureFixture[str]
) -> None:
    document = plan_document()
    _rate(document)
    document["cluster"]["servers"][2]["devices"] = []
    document["job"] = {"kind": "unheard of"}
    assert solve(written(tmp_path, document)) == 3
    said = capsys.readouterr().err
    assert "cluster.servers[1].nics[0].rate" in said and "cluster.servers[2].devices" in said
    assert "job" not in said.replace(str(tmp_path), "")


@pytest.mark.parametrize("text", ["", "- 1", "servers: []", "a: [", "cluster: 1"])
def test_what_holds_no_cluster_is_refused(
    tmp_path: Path, solve: Solve, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(text)
    assert solve(file) == 3
    said = capsys.readouterr().err
    assert f"{file}: " in said and "accepted" in said and "Traceback" not in said


def test_the_shipped_plans_can_be_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    for file in sorted((ROOT / "examples" / "plans").glob("*.yaml")):
        assert read_cluster(file).devices
        assert str(file) in capsys.readouterr().err
