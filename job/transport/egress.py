"""Where what is sent to each peer leaves this server, asked of the kernel before anything is sent.

gloo and NCCL bind no source address: routes alone decide which NIC carries what they send, and
others may have made some of their own.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from placewire.job.contract.specification import RailInterface
from placewire.job.errors import JobError

# Nothing is sent there: a socket is only connected.
_ANY_UDP_PORT = 9


def require_on_rails(rails: Sequence[RailInterface]) -> None:
    """Raises JobError naming the first peer whose rail is not taken on the way to it."""
    for rail in rails:
        for peer in rail.peers:
            found = _source_towards(peer)
            if found != rail.address:
                raise JobError(
                    f"what is sent to {peer} leaves from {found or 'nowhere'}, not from "
                    f"{rail.address} on {rail.interface} of rail {rail.rail}",
                    f"`ip route get {peer}` there shows the route that wins; take it away, or give "
                    "the rail another subnet",
                )


def _source_towards(address: str) -> str | None:
    """Of a socket that is bound to nothing, as gloo's and NCCL's are; None: there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_UDP_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])
