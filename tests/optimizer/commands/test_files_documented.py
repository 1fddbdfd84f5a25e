"""docs/files.md and examples/clusters say what the files' own types say."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.records.of_traffic import TrafficRow
from placewire.controller.records.report import RailRow, RunReport, SharingRow
from placewire.optimizer.cluster import Cluster, Device, Link, Nic, Pod, Server, Uplink
from placewire.optimizer.graph.graph_file import graph_from_json, graph_to_json
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow
from placewire.optimizer.placement import Message, Placement, Variant
from tests.paths import ROOT

TEXT = (ROOT / "docs" / "files.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", TEXT.split(f"## {title}\n")[1], flags=re.M)[0]


@pytest.mark.parametrize(
    ("title", "models"),
    [
        ("Cluster", [Cluster, Server, Device, Nic, Link, Pod, Uplink]),
        ("Placement", [Placement, Message, Variant]),
        ("run.json", [RunReport, SharingRow, LinkMeasurement, RailRow, TrafficRow]),
    ],
)
def test_every_key_of_a_file_is_documented_and_no_other(title, models):
    said = set(re.findall(r"`([a-z_]+)`", section(title)))
    keys = {key for model in models for key in model.model_fields}
    assert not keys - said, "not documented"
    rows = re.findall(r"^\| (`[^|]*`) \|", section(title), re.M)
    first_column = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
    assert not first_column - keys, "documented, and not a key"


def test_every_key_of_a_graph_file_is_documented():
    said = set(re.findall(r"`([a-z_]+)`", section("Graph")))
    rows = {field.name for row in (OperatorRow, TensorRow) for field in fields(row)}
    assert not (rows | set(graph_to_json(graph_from_json(smallest_graph())))) - said


def smallest_graph() -> dict:
    found = re.search(r"```json\n(.*?)```", section("Graph"), re.S)
    assert found is not None
    return json.loads(found[1])


def test_the_documented_graph_is_one():
    graph = graph_from_json(smallest_graph())
    assert graph.ids == ("a", "b")
    assert graph.seconds.tolist() == [[0.01], [0.02]]


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "clusters").glob("*.json")))
def test_the_example_clusters_are_clusters(file):
    assert Cluster.model_validate_json(file.read_text()).devices
