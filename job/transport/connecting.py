"""From ranks that found each other to ranks that are connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import RankSpec
from placewire.job.transport.gloo import GlooTransport
from placewire.job.transport.rendezvous import meet
from placewire.job.transport.tcp_connections import Backlog
from placewire.optimizer.device_names import server_of
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement

if TYPE_CHECKING:
    from placewire.job.transport.nccl import NcclTransport


def connect(
    spec: RankSpec,
    placement: Placement,
    transport: GlooTransport | NcclTransport,
    store: TCPStore,
) -> None:
    """When every rank is ready. Raises JobError where one is not, or cannot be reached."""
    addresses = meet(store, spec)
    interfaces = tuple(rail.interface for rail in spec.rail_interfaces)
    transport.connect(store, spec.rank, spec.world_size, interfaces, spec.wait_seconds)
    policy = SHARINGS[placement.sharing]
    in_order = policy.sends_most_urgent_first and spec.urgent_first
    if isinstance(transport, GlooTransport) and in_order:
        here = server_of(spec.device)
        nics = next(server.nics for server in placement.cluster.servers if server.name == here)
        rates = {nic.rail: nic.rate_bits_per_second for nic in nics}
        transport.watch(Backlog(addresses, rates))
