"""Connects a rank's transport once all ranks are ready."""

from __future__ import annotations

from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import RankSpec
from placewire.job.transport.gloo import GlooTransport
from placewire.job.transport.nccl import NcclTransport
from placewire.job.transport.rendezvous import meet
from placewire.job.transport.tcp_connections import Backlog
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement


def connect(
    spec: RankSpec,
    placement: Placement,
    transport: GlooTransport | NcclTransport,
    store: TCPStore,
) -> None:
    """Raises JobError where a rank does not get ready, or cannot be reached."""
    addresses = meet(store, spec)
    interfaces = tuple(rail.interface for rail in spec.rail_interfaces)
    among = (store, spec.rank, spec.world_size, interfaces, spec.wait_seconds)
    if isinstance(transport, NcclTransport):
        transport.connect(*among)
        return
    transport.connect(*among, addresses, spec.acknowledgement_dscp)
    ordered = SHARINGS[placement.sharing].sends_most_urgent_first and spec.urgent_first
    if ordered:
        here = server_of(spec.device)
        nics = next(server.nics for server in placement.cluster.servers if server.name == here)
        rates = {nic.rail: nic.rate_bits_per_second for nic in nics}
        transport.watch(Backlog(addresses, rates))
