"""Makes the transport of a rank for the backend of its job."""

from __future__ import annotations

import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.messages.emulated_setup import with_set_up
from placewire.job.messages.rank_messages import RankMessages
from placewire.job.messages.send_queues import queues_for
from placewire.job.transport.gloo import GlooTransport
from placewire.job.transport.nccl import UNVERIFIED, NcclTransport
from placewire.optimizer.device_names import index_of, server_of
from placewire.optimizer.placement import Placement


def transport_of(
    spec: RankSpec, placement: Placement, messages: RankMessages
) -> GlooTransport | NcclTransport:
    """Returns the unconnected transport. Raises JobError where its backend cannot be used."""
    rails = tuple(rail.rail for rail in spec.rail_interfaces)
    if spec.backend == "gloo":
        queues = queues_for(placement, spec.device, rails, spec.urgent_first)
        if spec.kind == "replay":
            queues = with_set_up(queues, placement)
        return GlooTransport(messages, queues, spec.sockets_per_rail)
    if placement.backend != "nccl":
        raise JobError(
            "this placement cuts messages over rails in proportion to their rates; NCCL cuts them "
            "equally",
            "solve again with `--backend nccl`, or use `job.backend: gloo`",
        )
    if not torch.cuda.is_available():
        raise JobError(
            "backend nccl needs a CUDA device and a CUDA build of torch; this server has none",
            "use `job.backend: gloo`",
        )
    here = server_of(spec.device)
    servers = [server for server in placement.cluster.servers if server.name == here]
    fastest = max(nic.rate_bits_per_second for server in servers for nic in server.nics)
    device = torch.device("cuda", index_of(spec.device))
    return NcclTransport(messages, device, fastest, spec.sockets_per_rail)


def backend_notes(spec: RankSpec) -> tuple[str, ...]:
    """Returns what a user should know of the backend."""
    return (UNVERIFIED,) if spec.backend == "nccl" else ()
