"""A model whose batches have several shapes trains in a real lab, as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placewire.optimizer.check.check import check
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.placement import load_placement
from tests.end_to_end.cluster import TestCluster, read_report
from tests.models.lengths import TURNS

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.thorough]

STEPS = 8


def document(cluster: TestCluster, memory: str) -> dict[str, Any]:
    made = cluster.document()
    for server in made["cluster"]["servers"]:
        server["devices"][0]["memory"] = memory
    folder = cluster.folder / f"kept{memory}"
    made["job"] |= {
        "model": "tests.models.lengths:wide", "batch": 4, "steps": STEPS,
        "validation": {"every": 4, "batches": 3},
        "checkpoint": {"folder": str(folder), "every": 4},
    }  # fmt: skip
    return made


def test_batches_of_several_lengths_train_over_servers_as_on_one(
    cluster: TestCluster, untouched: None
) -> None:
    asked, report_file = document(cluster, "5MiB"), cluster.folder / "buckets.json"
    plan = str(cluster.plan(asked, "buckets"))
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    report = read_report(report_file)
    assert report["server_pairs"], "no two servers talk"
    assert all(link["within_tolerance"] for link in report["links"])
    turns = [str(TURNS[k % len(TURNS)]) for k in range(STEPS)]
    rows = {row["name"]: row for row in report["buckets"]}
    assert list(rows) == ["12", "5", "8"]
    for name, row in rows.items():
        assert row["steps"] == turns.count(name)
        assert row["share"] == pytest.approx(turns.count(name) / STEPS)
        assert 0 < row["bound_seconds"] <= row["predicted_step_seconds"]
        assert row["measured_step_seconds"] > 0
    mean = sum(row["predicted_step_seconds"] * row["share"] for row in rows.values())
    assert report["predicted_step_seconds"] == pytest.approx(mean)
    for row in report["traffic"]:
        assert row["sent_bytes"] == pytest.approx(row["planned_bytes"], rel=0.01, abs=64)
    assert "bucket 5 beside 12" in done.output
    assert "Buckets: the shapes that batches had" in done.output
    first = load_placement(Path(report["files"]["placement"]))
    for name in ("5", "8"):
        other = load_placement(Path(report["files"][f"placement of bucket {name}"]))
        graph = load_graph(Path(report["files"][f"graph of bucket {name}"]))
        assert check(graph, other) == ()
        assert other.rates_bits_per_second == first.rates_bits_per_second
        held = [i for i, kind in zip(graph.ids, graph.types, strict=True) if kind == "parameter"]
        assert held and all(other.operators[i] == first.operators[i] for i in held)

    alone = document(cluster, "1GiB")
    alone["solve"] = {"engine": "single"}
    plan = str(cluster.plan(alone, "alone"))
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
    assert done.code == 0, done.told
    one = read_report(report_file)
    assert len(one["devices"]) == 1
    for key in ("losses", "metrics"):
        assert one[key] == report[key] and one[key]
    assert [row["loss"] for row in one["validations"]] == [
        row["loss"] for row in report["validations"]
    ]


def test_a_trace_of_several_shapes_is_refused_before_anything_changes(
    cluster: TestCluster, untouched: None
) -> None:
    asked = document(cluster, "5MiB")
    del asked["job"]["checkpoint"]  # That job has come to its end.
    asked["job"]["trace"] = {"folder": str(cluster.folder / "traces"), "steps": 1}
    done = cluster.run("apply", str(cluster.plan(asked, "traced")), "--yes")
    assert done.code == 3, done.told
    assert "job.trace: the batches of tests.models.lengths:wide have several shapes" in done.output
