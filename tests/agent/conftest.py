from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.server_under_test import ServerUnderTest, server_under_test


@pytest.fixture
def server() -> Iterator[ServerUnderTest]:
    with server_under_test() as built:
        yield built
