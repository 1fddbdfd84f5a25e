"""The lab of all end-to-end tests, and what every one of them must leave as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.end_to_end.cluster import TestCluster
from tests.end_to_end.snapshots import differences, machine_snapshot


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """The lab stands for all of them; afterwards the machine is as it was."""
    # Others may have such a lab at the same time, and none's name begins as another's.
    name = f"e2e{os.getpid():07}"
    before = machine_snapshot(name)
    cluster = TestCluster(name, tmp_path_factory.mktemp("plans"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
    after = machine_snapshot(name)
    assert differences(before, after) == []


@pytest.fixture
def untouched(cluster: TestCluster) -> Iterator[None]:
    """Every server is, byte for byte, what it was before the test, and no rank is left."""
    cluster.make_anew_if_touched()
    yield
    after = cluster.snapshots()
    assert differences(cluster.new, after) == []
    assert cluster.ranks() == []
