"""The lab of all end-to-end tests, and what every one of them must leave as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import TestCluster
from snapshots import differences, machine_snapshot


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """The lab stands for all of them; afterwards the machine is as it was."""
    before = machine_snapshot("e2e")
    cluster = TestCluster("e2e", tmp_path_factory.mktemp("plans"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
    after = machine_snapshot("e2e")
    assert differences(before, after) == []


@pytest.fixture
def untouched(cluster: TestCluster) -> Iterator[None]:
    """Every server is, byte for byte, what it was before the test, and no rank is left."""
    cluster.make_anew_if_touched()
    yield
    after = cluster.snapshots()
    assert differences(cluster.new, after) == []
    assert cluster.ranks() == []
