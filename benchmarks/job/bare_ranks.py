"""Replays between namespaces: ranks run as in a job, but without a plan, agents or queues."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.job.namespaces import Namespaces
from benchmarks.report import ROOT
from placewire.job.contract.specification import (
    Finished,
    RailInterface,
    RankSpec,
    StepDone,
    parse_rank_event,
)
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.placement import Message, Placement, save_placement
from tests.placements import placement_of

# The payload's part of a full frame: 1448 of 1514 bytes.
PAYLOAD = 1448 / 1514
_LIMIT_SECONDS = 90
_TCP_PORT = 29500


@dataclass(frozen=True)
class Sent:
    """A tensor sent from an operator on s1 that takes `after` seconds to one on server `to` that
    takes `then` seconds. urgency: the send order, 0 first."""

    name: str
    bytes: int
    to: str = "s2"
    after: float = 0.0
    then: float = 0.0
    urgency: int = 0


@dataclass(frozen=True)
class Told:
    """The reports of the ranks. step_seconds: by server. traffic: bytes of all steps by
    (destination device, rail), as the sender counted them."""

    step_seconds: Mapping[str, tuple[float, ...]]
    traffic: Mapping[tuple[str, str], int]


def cluster_of(rates_bits_per_second: Mapping[str, Mapping[str, float]]) -> Cluster:
    """The cluster of Namespaces with these wire rates, by rail and server."""
    names = dict.fromkeys(server for rail in rates_bits_per_second.values() for server in rail)
    servers = tuple(
        Server(
            name=name,
            devices=(Device(type="any", memory_bytes=1 << 30),),
            nics=tuple(
                Nic(rail=rail, rate_bits_per_second=rates[name] * PAYLOAD)
                for rail, rates in rates_bits_per_second.items()
            ),
        )
        for name in names
    )
    return Cluster(servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e10)


def job_of(
    cluster: Cluster, sent: Sequence[Sent], shares: Mapping[str, float], sharing: str
) -> tuple[OperatorGraph, Placement]:
    """The graph and placement that send these tensors: operators on s1 run in the order of `sent`,
    those of a receiver in send order."""
    rows = [OperatorRow(id=one.name, type="x", seconds={"any": one.after}) for one in sent]
    rows += [OperatorRow(id=f"{o.name}'", type="x", seconds={"any": o.then}) for o in sent]
    graph = build_graph(rows, [TensorRow(o.name, (f"{o.name}'",), o.bytes) for o in sent])
    devices = {one.name: "s1/0" for one in sent}
    devices |= {f"{one.name}'": f"{one.to}/0" for one in sent}
    order: dict[str, tuple[str, ...]] = dict.fromkeys(cluster.device_names, ())
    order["s1/0"] = tuple(one.name for one in sent)
    for one in sorted(sent, key=lambda o: o.urgency):
        order[f"{one.to}/0"] += (f"{one.name}'",)
    messages = tuple(
        Message(
            producer=one.name, source="s1/0", destination=f"{one.to}/0", bytes=one.bytes,
            send_order=one.urgency, rails={rail: share for rail, share in shares.items() if share},
        )
        for one in sent
    )  # fmt: skip
    made = {"sharing": sharing, "order": order, "messages": messages}
    return graph, placement_of(graph, cluster, devices).model_copy(update=made)


def replay(
    network: Namespaces,
    graph: OperatorGraph,
    placement: Placement,
    steps: int,
    *,
    limit_seconds: float = _LIMIT_SECONDS,
    **spec: Any,
) -> Told:
    """Runs the placement's ranks. spec: fields of RankSpec that differ from those of a replay.
    Raises RuntimeError where a rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        files = _specs(network, graph, placement, Path(folder), steps, spec)
        ranks = [
            subprocess.Popen(
                [*network.prefix(server), sys.executable, "-m", "placewire.job", str(file)],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
            for server, file in files.items()
        ]  # fmt: skip
        try:
            said = [rank.communicate(timeout=limit_seconds)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    events = [[parse_rank_event(line) for line in out.splitlines()] for out in said]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank failed: {[told[-1:] for told in events]}")
    traffic: Counter[tuple[str, str]] = Counter()
    for finished in (e for told in events for e in told if isinstance(e, Finished)):
        for one in finished.traffic:
            traffic[one.destination, one.rail] += one.bytes
    seconds = {
        server: tuple(e.seconds for e in told if isinstance(e, StepDone))
        for server, told in zip(files, events, strict=True)
    }
    return Told(seconds, traffic)


def _specs(
    network: Namespaces,
    graph: OperatorGraph,
    placement: Placement,
    folder: Path,
    steps: int,
    different: Mapping[str, Any],
) -> dict[str, Path]:
    """Writes the specifications of the ranks; returns their files by server, in rank order."""
    save_graph(graph, folder / "graph.json")
    save_placement(placement, folder / "placement.json")
    rails = placement.cluster.rails
    files = {}
    for rank, device in enumerate(placement.devices_used):
        server = device.split("/")[0]
        fields = {
            "kind": "replay", "rank": rank, "world_size": len(placement.devices_used),
            "device": device, "master_address": network.address("s1", rails[0]),
            "master_tcp_port": _TCP_PORT, "placement_file": str(folder / "placement.json"),
            "graph_file": str(folder / "graph.json"), "steps": steps, "timeout_seconds": 60,
            "rail_interfaces": [
                RailInterface(
                    rail=rail, interface=network.nic(rail), address=network.address(server, rail)
                )
                for rail in rails
            ],
            **different,
        }  # fmt: skip
        files[server] = folder / f"{server}.json"
        files[server].write_text(RankSpec.model_validate(fields).model_dump_json())
    return files


def greedy_flows(network: Namespaces, count: int, seconds: int) -> list[subprocess.Popen[str]]:
    """Starts iperf3 from s1 to s3 on rail a; the last process tells what its flows got."""
    server = subprocess.Popen(
        [*network.prefix("s3"), "iperf3", "--server", "--one-off"],
        stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    client = subprocess.Popen(
        [
            *network.prefix("s1"), "sh", "-c", "sleep 0.5; exec \"$@\"", "-", "iperf3", "--json",
            "--client", network.address("s3", "a"), "--parallel", str(count),
            "--time", str(seconds),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return [server, client]


def flows_got(client: subprocess.Popen[str]) -> float:
    """The bits per second that all flows of greedy_flows() received; waits for their end."""
    out, _ = client.communicate(timeout=_LIMIT_SECONDS)
    return float(json.loads(out)["end"]["sum_received"]["bits_per_second"])
