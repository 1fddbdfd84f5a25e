"""Plans for tests, as the mapping that YAML gives: change one thing and see what is said."""

from __future__ import annotations

import copy
from typing import Any

from placewire.agent.contract.capabilities import Capabilities
from placewire.controller.plan.plan import Plan
from placewire.controller.plan.plan_file import parse_plan
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Message, Placement
from tests.paths import ROOT


def plan_document(servers: int = 3, *, name: str = "small", rate: str = "50Mbit") -> dict[str, Any]:
    return {
        "version": 1,
        "name": name,
        "cluster": {
            "setup_latency": "200us",
            "intra_server_bandwidth": "10Gbit",
            "servers": [
                {
                    "name": f"s{k}",
                    "management": f"10.9.0.{k}",
                    "devices": [{"type": "cpu", "memory": "1GiB"}],
                    "nics": [
                        {
                            "name": f"nic{r}",
                            "rail": rail,
                            "address": f"10.7.{r}.{k}/24",
                            "rate": rate,
                            "take_over": True,
                        }
                        for r, rail in enumerate("ab")
                    ],
                }
                for k in range(1, servers + 1)
            ],
        },
        "job": {
            "kind": "placed",
            "model": "placewire.examples.models.mlp:training_step",
            "batch": 16,
            "accumulate": 1,
            "recompute": "none",
            "steps": 3,
        },
        "solve": {"time_limit": "5s"},
        "network": {"sharing": "strict", "verify": {"seconds": 2}},
    }


def plan(document: dict[str, Any] | None = None) -> Plan:
    return parse_plan(copy.deepcopy(document or plan_document()), "test.yaml", base=ROOT)


def placement(
    of: Plan, rates: tuple[tuple[str, str, str, float], ...], sharing: SharingName = "strict"
) -> Placement:
    """One operator a server, a chain; rates as given."""
    cluster = of.payload_cluster
    devices = cluster.device_names
    return Placement(
        structure_hash="0" * 64,
        profile_digest="0" * 64,
        cluster=cluster,
        model="contended",
        sharing=sharing,
        floor=of.network.floor,
        operators={f"op{k}": device for k, device in enumerate(devices)},
        order={device: (f"op{k}",) for k, device in enumerate(devices)},
        rates_bits_per_second=rates,
        messages=tuple(
            Message(
                producer=f"op{k}",
                source=devices[k],
                destination=devices[k + 1],
                bytes=1_000_000,
                send_order=k,
                rails={"a": 0.75, "b": 0.25},
            )
            for k in range(len(devices) - 1)
        ),
        step_seconds=1.0,
        bound_seconds=0.5,
        gap=0.5,
        single_device_seconds=2.0,
        engine="auto",
        reduction="none",
        seed=0,
        wall_seconds={},
    )


def capabilities(*, set_queue_honoured: bool = False) -> Capabilities:
    return Capabilities(
        datapath="system" if set_queue_honoured else "netdev",
        set_queue_honoured=set_queue_honoured,
        open_vswitch_version="3.1.0",
        kernel_version="6.1",
        python_version="3.11",
        nics=(),
    )
