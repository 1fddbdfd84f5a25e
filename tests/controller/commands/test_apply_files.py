"""`controller apply` says at its end where the files are that it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controller.memory_cluster import MemoryCluster

pytestmark = [pytest.mark.slow, pytest.mark.timed]


def test_apply_says_where_its_report_and_its_page_are(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, servers=2)
    with cluster.running():
        plan = cluster.plan()
        out, page = tmp_path / "run.json", tmp_path / "page.html"
        done = cluster.run("apply", plan, "--network-only", "--yes", "--out", out, "--report", page)
        again = cluster.run("apply", plan, "--network-only", "--yes", "--report", "/dev/full")
        streams = ("--out", "/dev/null", "--report", "/dev/stdout")
        into_streams = cluster.run("apply", plan, "--network-only", "--yes", *streams)
    assert done.code == 0 and out.exists() and page.exists(), done.output
    last = done.output.splitlines()[-2:]
    assert last[0].endswith(f"the run's report is in {out}")
    assert last[1].endswith(f"the run's page is in {page}")
    assert again.code == 0 and "--report /dev/full: not written" in again.output
    assert "the run's" not in again.output
    assert into_streams.code == 0 and "<html" in into_streams.output
    assert "the run's report is in" not in into_streams.output
    assert "the run's page is in" not in into_streams.output
