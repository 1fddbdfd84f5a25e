"""Two ranks in network namespaces with two NICs each: does a message leave by both, and what
happens when one of them is down?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.specification import RailInterface
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from tests.job.ranks import LONGEST_SECONDS, Rank, end, start_ranks
from tests.placements import cluster_of, placement_of

pytestmark = pytest.mark.network

RAILS = ("a", "b")
SHARES = {"a": 0.3, "b": 0.7}
STEPS = 4
BYTES = 4_000_000


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.fixture
def servers() -> Iterator[tuple[str, str]]:
    """Two namespaces, joined by one cable per rail, NIC `nica` on rail a and `nicb` on rail b, and
    by one of the management network, `nicm`."""
    names = (f"pwjob{os.getpid()}x", f"pwjob{os.getpid()}y")
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for number, rail in enumerate((*RAILS, "m")):
            nic = f"nic{rail}"
            run(
                "ip", "link", "add", nic, "netns", names[0],
                "type", "veth", "peer", nic, "netns", names[1],
            )  # fmt: skip
            for host, name in enumerate(names, start=1):
                run("ip", "-n", name, "address", "add", f"10.77.{number}.{host}/24", "dev", nic)
                run("ip", "-n", name, "link", "set", nic, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=60)


def transmitted_bytes(namespace: str, nic: str) -> int:
    (link,) = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", nic))
    return int(link["stats64"]["tx"]["bytes"])


# Prints, from its first line of input to the next, the greatest length of the TCP packets that
# leave by a NIC, by their type of service.
SNIFF = """
import json, select, socket, sys
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
sniffer.bind((sys.argv[1], 0))
print(flush=True)
longest = {}
while sys.stdin not in select.select([sniffer, sys.stdin], [], [])[0]:
    packet, (_, protocol, kind, *_) = sniffer.recvfrom(65536)
    if kind == socket.PACKET_OUTGOING and protocol == 0x0800 and packet[9] == 6:
        longest[packet[1]] = max(longest.get(packet[1], 0), len(packet))
print(json.dumps(longest))
"""


def rail_interfaces(rank: int) -> tuple[RailInterface, ...]:
    return tuple(
        RailInterface(rail=rail, interface=f"nic{rail}", address=f"10.77.{number}.{rank + 1}")
        for number, rail in enumerate(RAILS)
    )


def start_pair(
    servers: tuple[str, str], folder: Path, master_address: str = "10.77.0.1", **options: Any
) -> list[Rank]:
    """Starts a replay with one message."""
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), BYTES)])
    save_graph(graph, folder / "graph.json")
    placement = placement_of(graph, cluster_of(2, RAILS), {"p": "s1/0", "q": "s2/0"}, shares=SHARES)
    return start_ranks(
        placement,
        folder,
        prefixes=[("ip", "netns", "exec", name) for name in servers],
        kind="replay",
        graph_file=str(folder / "graph.json"),
        master_address=master_address,
        rail_interfaces=rail_interfaces(0),
        last={"rail_interfaces": rail_interfaces(1)},
        **options,
    )


def test_a_message_leaves_by_both_nics_in_its_shares(
    servers: tuple[str, str], tmp_path: Path
) -> None:
    ranks = start_pair(servers, tmp_path, steps=STEPS)
    try:
        codes = [rank.finish(LONGEST_SECONDS) for rank in ranks]
    finally:
        end(ranks)
    assert codes == [0, 0], [(rank.events, rank.errors[-2000:]) for rank in ranks]
    told = {traffic.rail: traffic.bytes for traffic in ranks[0].finished.traffic}
    assert sum(told.values()) == STEPS * BYTES
    for rail, share in SHARES.items():
        assert told[rail] == pytest.approx(share * STEPS * BYTES, rel=1e-3)
        # Headers come on top; control messages are small.
        seen = transmitted_bytes(servers[0], f"nic{rail}")
        assert told[rail] <= seen < 1.1 * told[rail]


def test_a_rail_that_is_down_ends_the_ranks_long_before_the_kernel_gives_up(
    servers: tuple[str, str], tmp_path: Path
) -> None:
    """The ranks still get each other's heartbeats over the other rail."""
    ranks = start_pair(servers, tmp_path, steps=1_000_000, loss_seconds=5)
    try:
        assert ranks[0].process.stdout is not None
        while b'"step"' not in ranks[0].process.stdout.readline():
            assert ranks[0].process.poll() is None
        run("ip", "-n", servers[1], "link", "set", "nicb", "down")
        assert [rank.finish(60) for rank in ranks] == [1, 1]
        assert any("lost a peer" in rank.failed.what for rank in ranks)
    finally:
        end(ranks)


def read_step_of_each(ranks: Sequence[Rank]) -> None:
    """A rank of which nobody reads what it prints stands still when the pipe is full."""
    for rank in ranks:
        assert rank.process.stdout is not None
        told = list[bytes]()
        while not told or b'"step"' not in told[-1]:
            told.append(rank.process.stdout.readline())
            assert told[-1], told


@pytest.mark.slow
def test_a_management_network_that_is_gone_for_a_while_ends_no_job_whose_steps_pass(
    servers: tuple[str, str], tmp_path: Path
) -> None:
    """For longer than a rank may be silent where no step passes. Afterwards heartbeats go on: a
    rank that is then frozen is named."""
    loss_seconds = 12
    ranks = start_pair(servers, tmp_path, "10.77.2.1", steps=1_000_000, loss_seconds=loss_seconds)
    try:
        read_step_of_each(ranks)
        run("ip", "-n", servers[1], "link", "set", "nicm", "down")
        gone = time.monotonic()
        while time.monotonic() < gone + loss_seconds + 4:
            read_step_of_each(ranks)
        run("ip", "-n", servers[1], "link", "set", "nicm", "up")
        back = time.monotonic()
        while time.monotonic() < back + loss_seconds + 4:
            read_step_of_each(ranks)
        os.kill(ranks[0].process.pid, signal.SIGSTOP)
        assert ranks[1].finish(LONGEST_SECONDS) == 1
        assert ranks[1].failed.lost_rank == 0 and "rank 0 is lost" in ranks[1].failed.what
    finally:
        end(ranks)


@pytest.mark.parametrize("dscp", [18, 0])
def test_acknowledgements_are_marked_and_data_are_not(
    servers: tuple[str, str], tmp_path: Path, dscp: int
) -> None:
    """The message goes from the first server to the second."""
    sniffers = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", SNIFF, "nicb"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in servers
    ]  # fmt: skip
    try:
        for sniffer in sniffers:
            assert sniffer.stdout is not None and sniffer.stdout.readline() == "\n"
        ranks = start_pair(servers, tmp_path, steps=STEPS, acknowledgement_dscp=dscp)
        try:
            assert [rank.finish(LONGEST_SECONDS) for rank in ranks] == [0, 0]
        finally:
            end(ranks)
        sent, answered = (json.loads(one.communicate("\n", timeout=60)[0]) for one in sniffers)
    finally:
        for sniffer in sniffers:
            sniffer.kill()
            sniffer.wait()
    mark = str(dscp << 2)
    assert sent["0"] > 1000, "data"
    assert set(answered) <= {"0", mark} and answered[mark] < 200
    assert dscp == 0 or mark not in sent
