"""An sshd on this machine, for all tests of a file."""

from __future__ import annotations

import getpass
from collections.abc import Iterator

import pytest

from placewire.controller.launch.ssh_connecting import Login
from tests.controller.launch.ssh_stage import ADDRESS
from tests.controller.launch.sshd import Keys, make_keys, running_sshd
from tests.free_port import free_port


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("ssh"))


@pytest.fixture(scope="module")
def login(keys: Keys) -> Iterator[Login]:
    port = free_port()
    keys.know(ADDRESS, port)
    with running_sshd(keys, ADDRESS, port):
        yield Login(getpass.getuser(), port, keys.user, keys.known_hosts)
