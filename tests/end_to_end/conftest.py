"""The lab of all end-to-end tests, and the checks that each test leaves it as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.end_to_end.cluster import TestCluster
from tests.end_to_end.snapshots import differences, machine_snapshot


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """One lab for all tests; afterwards the machine is checked to be as it was before."""
    # Others may have such a lab at the same time; no lab's name begins with another's.
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
    """Checks that the test leaves every server byte for byte as it was, and no rank."""
    cluster.make_anew_if_touched()
    cluster.is_as_new = False
    yield
    after = cluster.snapshots()
    assert differences(cluster.new, after) == []
    assert cluster.ranks() == []
    cluster.is_as_new = True
