"""Files in each other's place: what a reader says that was given another of Placewire's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from placewire.controller.errors import PlanError
from placewire.controller.plan.plan_file import load_plan
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.placement import PlacementError, load_placement, save_placement
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.cases import cluster, graph


@pytest.fixture
def files(tmp_path: Path) -> Path:
    step = graph({"a": 1e-3, "b": 1e-3}, [("a", ["b"], 100)])
    save_graph(step, tmp_path / "graph.json")
    save_graph(step, tmp_path / "graph.json.gz")
    placement = place(Problem(step, cluster(2)), "single", SolveSettings())
    save_placement(placement, tmp_path / "placement.json")
    (tmp_path / "run.json").write_text('{"version": 1, "plan_name": "x", "plan_digest": "y"}')
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"cluster": {}, "job": {}}))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("placement.json", "it is a placement (`optimizer solve --out` writes it), not a plan"),
        ("graph.json", "it is a graph file (`optimizer capture` and `profile` write it), not"),
        ("graph.json.gz", "it is a graph file (`optimizer capture` and `profile` write it), not"),
        ("run.json", "it is the report of a run (`controller apply --out` writes it), not a plan"),
    ],
)
def test_a_plan_is_expected(files: Path, file: str, what: str) -> None:
    with pytest.raises(PlanError) as refused:
        load_plan(files / file)
    assert what in str(refused.value) and str(refused.value).count("\n") == 1


def test_graph_and_placement_are_told_apart(files: Path) -> None:
    with pytest.raises(GraphError, match=r"placement.json: it is a placement .*not a graph file"):
        load_graph(files / "placement.json")
    with pytest.raises(PlacementError, match=r"graph.json.gz: it is a graph file .*not a placem"):
        load_placement(files / "graph.json.gz")
    assert load_graph(files / "graph.json.gz").operator_count == 2
    assert load_placement(files / "placement.json").engine == "single"


def test_a_plan_with_mistakes_is_still_read_as_one(files: Path) -> None:
    with pytest.raises(PlanError, match="version: missing"):
        load_plan(files / "plan.yaml")
