"""Commands that change the network without a measurement; the servers are in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controller.memory_cluster import MemoryCluster

pytestmark = pytest.mark.slow

QUIETLY = ("--yes", "--no-measurement", "--json")


def test_nothing_is_sent_where_nobody_wants_it(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    with cluster.running():
        slow, fast = cluster.plan("slow", "40Mbit"), cluster.plan("fast", "50Mbit")
        measured = cluster.run("apply", slow, "--network-only", "--yes", "--json")
        assert measured.code == 0 and measured.document["links"], measured.output
        applied = cluster.run("apply", fast, "--network-only", *QUIETLY)
        assert applied.code == 0 and applied.document["links"] == [], applied.output
        assert "measuring" not in applied.output and "nothing is measured" in applied.output
        back = cluster.run("rollback", fast, *QUIETLY)
        assert back.code == 0 and "measuring" not in back.output, back.output
        leases = {lease.plan_digest for lease in cluster.leases.values()}
        assert leases == {measured.document["plan_digest"]}
