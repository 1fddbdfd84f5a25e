"""Two ranks in network namespaces with two NICs each: does a message's cut leave by both?"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract.job import RailInterface
from optimizer.graph import OperatorRow, TensorRow, build_graph, save_graph
from placements import cluster_of, placement_of
from ranks import end, start_ranks

pytestmark = pytest.mark.network

RAILS = ("a", "b")
STEPS = 4
BYTES = 4_000_000


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.fixture
def servers() -> Iterator[tuple[str, str]]:
    """Two namespaces, joined by one cable per rail: NIC `nica` on rail a, `nicb` on rail b."""
    names = (f"pwjob{os.getpid()}x", f"pwjob{os.getpid()}y")
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for number, rail in enumerate(RAILS):
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
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)


def transmitted_bytes(namespace: str, nic: str) -> int:
    (link,) = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", nic))
    return int(link["stats64"]["tx"]["bytes"])


def test_a_message_leaves_by_both_nics_in_its_shares(
    servers: tuple[str, str], tmp_path: Path
) -> None:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), BYTES)])
    save_graph(graph, tmp_path / "graph.json")
    shares = {"a": 0.3, "b": 0.7}
    placement = placement_of(graph, cluster_of(2, RAILS), {"p": "s1/0", "q": "s2/0"}, shares=shares)
    ranks = start_ranks(
        placement,
        tmp_path,
        prefixes=[("ip", "netns", "exec", name) for name in servers],
        kind="replay",
        graph_file=str(tmp_path / "graph.json"),
        steps=STEPS,
        master_address="10.77.0.1",
        rail_interfaces=tuple(
            RailInterface(rail=rail, interface=f"nic{rail}", address="") for rail in RAILS
        ),
    )
    try:
        codes = [rank.finish(40) for rank in ranks]
    finally:
        end(ranks)
    assert codes == [0, 0], [(rank.events, rank.errors[-2000:]) for rank in ranks]
    told = {traffic.rail: traffic.bytes for traffic in ranks[0].finished.traffic}
    assert sum(told.values()) == STEPS * BYTES
    for rail, share in shares.items():
        assert told[rail] == pytest.approx(share * STEPS * BYTES, rel=1e-3)
        # Headers come on top; control messages are small.
        seen = transmitted_bytes(servers[0], f"nic{rail}")
        assert told[rail] <= seen < 1.1 * told[rail]
