"""plan.yaml's cluster as the optimizer sees it: payload rates, the rails that carry the job."""

from __future__ import annotations

from controller.compile.units import payload_capacity, payload_fraction
from controller.plan import Plan
from optimizer.cluster import Cluster, Device, Nic, Server


def cluster_of(plan: Plan) -> Cluster:
    return Cluster(
        servers=tuple(
            Server(
                name=server.name,
                devices=tuple(
                    Device(type=d.type, memory_bytes=d.memory_bytes) for d in server.devices
                ),
                nics=tuple(
                    Nic(
                        rail=nic.rail,
                        rate_bits_per_second=payload_capacity(nic.rate_bits_per_second),
                        background_bits_per_second=nic.background_bits_per_second
                        * payload_fraction(),
                    )
                    for nic in server.nics
                    if nic.rail in plan.rails
                ),
            )
            for server in plan.cluster.servers
        ),
        setup_latency_seconds=plan.cluster.setup_latency_seconds,
        intra_server_bits_per_second=plan.cluster.intra_server_bits_per_second,
    )
