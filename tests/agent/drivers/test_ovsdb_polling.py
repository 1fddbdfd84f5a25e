"""The library of Open vSwitch waits for descriptors of any number, and for all that is asked."""

from __future__ import annotations

import select
import socket
import subprocess
import sys

from placewire.agent.drivers.ovsdb_polling import Poll

ABOVE_1023 = """
import os, resource, select
import ovs.poller
from placewire.agent.drivers import ovsdb_connection
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
read, write = os.pipe()
os.dup2(read, 2000)
os.write(write, b"x")
poller = ovs.poller.Poller()
poller.fd_wait(2000, select.POLLIN)
poller.block()
"""


def test_a_descriptor_above_1023_is_waited_for() -> None:
    subprocess.run([sys.executable, "-c", ABOVE_1023], check=True, timeout=60)


def test_a_descriptor_is_waited_for_by_all_that_it_was_registered_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        poll = Poll()
        poll.register(ours, select.POLLOUT)
        poll.register(ours.fileno(), select.POLLIN)
        assert poll.poll(0) == [(ours.fileno(), select.POLLIN | select.POLLOUT)]


def test_it_waits_no_longer_than_it_is_told_to() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poll = Poll()
        poll.register(ours, select.POLLIN)
        assert poll.poll(10) == []
