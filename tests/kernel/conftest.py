"""Tests that need Open vSwitch's kernel datapath are collected only by `make test-kernel`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest, server_under_test

collect_ignore_glob = ["test_*.py"] if DATAPATH != "system" else []


@pytest.fixture
def server() -> Iterator[ServerUnderTest]:
    with server_under_test() as built:
        yield built
