"""Checks, before anything is sent, that messages to each peer will leave through its rail's NIC.

gloo and NCCL bind no source address: routes alone decide which NIC carries what they send, and
somebody else may have added routes.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from placewire.job.contract.specification import RailInterface
from placewire.job.errors import JobError

# Nothing is sent to it: connecting the socket makes the kernel choose a route.
_ANY_UDP_PORT = 9


def require_on_rails(rails: Sequence[RailInterface]) -> None:
    """Raises JobError naming the first peer that is not reached through its rail's interface."""
    for rail in rails:
        for peer in rail.peers:
            found = _source_towards(peer)
            if found != rail.address:
                raise JobError(
                    f"messages to {peer} leave from {found or 'nowhere'}, not from "
                    f"{rail.address} on {rail.interface} of rail {rail.rail}",
                    f"`ip route get {peer}` on that server shows the route that wins; remove it, "
                    "or give the rail another subnet",
                )


def _source_towards(address: str) -> str | None:
    """Returns the source address that the kernel gives a socket which is bound to none, as gloo's
    and NCCL's sockets are; None where there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_UDP_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])
