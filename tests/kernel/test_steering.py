"""set_queue on the kernel datapath sends each packet, and acknowledgements, to the right HTB class.

Rates are small, because the processor is emulated.
"""

from __future__ import annotations

import fcntl
import json
import re
import socket
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest

from placewire.agent.contract.state import DesiredState
from placewire.controller.compile.transfers import FIRST_TCP_PORT
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state
from tests.agent.transfers import class_bytes

pytestmark = pytest.mark.network

STRANGER = "10.7.0.9"
# The longest wait for acknowledgements behind data, which would take most of a minute.
LONGEST_SECONDS = 10.0


def test_every_destination_has_its_class_and_the_rest_the_first(server: ServerUnderTest) -> None:
    server.sh(f"ip address add {STRANGER}/24 dev nic0", peer=True)
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    assert not server.sh("tc filter show dev nic0"), "no classifier helps"
    for address, queue_id in (("10.7.0.2", 2), ("10.7.0.3", 3), (STRANGER, 0)):
        before = [class_bytes(server, n) for n in range(4)]
        received = transfer(server, address, FIRST_TCP_PORT + queue_id)
        sent = [class_bytes(server, n) - was for n, was in enumerate(before)]
        assert sent[queue_id] > received, (address, sent)
        others = sum(sent) - sent[queue_id]
        assert others < sent[queue_id] / 50, f"to {address}: bytes of the classes {sent}"


def transfer(server: ServerUnderTest, address: str, port: int) -> int:
    """Sends TCP to the peer's address for a second; returns the bytes that arrived."""
    listen(server, address, port, peer=True)
    said = server.sh(f"iperf3 -J -c {address} -p {port} -t 1")
    return int(json.loads(said)["end"]["sum_received"]["bytes"])


def listen(server: ServerUnderTest, address: str, port: int, *, peer: bool) -> None:
    server.popen("iperf3", "-s", "-1", "-B", address, "-p", str(port), peer=peer,
                 stdout=subprocess.DEVNULL)  # fmt: skip
    wait_for(lambda: f":{port} " in server.sh("ss -ltn", peer=peer), "iperf3")


def test_acknowledgements_do_not_wait_behind_data(server: ServerUnderTest) -> None:
    """A server receives a megabyte from another one while its queue of 1 Mbit/s to that other one
    is full."""
    slow = desired_state(1, rates=(1_000_000, 30_000_000))
    without = slow.model_copy(
        update={"generation": 2, "flows": tuple(f for f in slow.flows if f.destination)}
    )
    own_class, behind_data = (seconds_beside_data(server, state) for state in (slow, without))
    print(
        f"\na megabyte beside a full queue of 1 Mbit/s: {own_class:.2f} s with a class for "
        f"acknowledgements, {behind_data:.2f} s (at most {LONGEST_SECONDS:g}) without"
    )
    assert own_class < behind_data / 2


def seconds_beside_data(server: ServerUnderTest, state: DesiredState) -> float:
    assert server.inside(keeping.stage, server.config, state).succeeded
    server.inside(keeping.commit, server.config, state.generation)
    listen(server, "10.7.0.2", 42020, peer=True)
    filling = server.popen(
        "iperf3", "-c", "10.7.0.2", "-p", "42020", "-P", "8", "-t", "60", stdout=subprocess.DEVNULL
    )
    wait_for(lambda: backlog(server) > 5, "a full queue", 20)
    sink = server.popen(sys.executable, "-S", "-c", SINK)
    wait_for(lambda: ":42021 " in server.sh("ss -ltn"), "the sink")
    seconds = float(server.inside(seconds_until_acknowledged, peer=True))
    assert backlog(server) > 5, "full to the end"
    for process in (filling, sink):
        process.kill()
        process.wait()
    return seconds


def backlog(server: ServerUnderTest) -> int:
    """The number of packets that wait in queue 2."""
    words = server.sh("tc -s class show dev nic0").split("class htb ")
    (mine,) = [text for text in words if text.startswith("1:3 ")]
    found = re.search(r"backlog \S+ (\d+)p", mine)
    assert found is not None
    return int(found[1])


SINK = """
import socket
with socket.create_server(("10.7.0.1", 42021)) as server:
    ours, _ = server.accept()
    while ours.recv(1 << 20):
        pass
"""


def seconds_until_acknowledged() -> float:
    """The seconds of a handshake and a megabyte, at most LONGEST_SECONDS, until the kernel says
    that all of it was acknowledged."""
    began = time.monotonic()
    with socket.socket() as ours, suppress(TimeoutError):
        ours.settimeout(LONGEST_SECONDS)
        ours.bind(("10.7.0.2", 0))
        ours.connect(("10.7.0.1", 42021))
        ours.sendall(bytes(1_000_000))
        while struct.unpack("i", fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(4)))[0]:
            time.sleep(0.002)
            if time.monotonic() - began > LONGEST_SECONDS:
                break
    return min(time.monotonic() - began, LONGEST_SECONDS)
