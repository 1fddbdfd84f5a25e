"""What the network promised, as transfers to measure: one per (source, destination, rail) rate."""

from __future__ import annotations

from agent.contract.measurement import Transfer
from controller.plan import Plan
from optimizer.placement import Placement

FIRST_TCP_PORT = 42000


def promised_transfers(plan: Plan, placement: Placement) -> tuple[Transfer, ...]:
    """Every promised rate; a TCP port of its own for each transfer into one server."""
    address = {(s.name, n.rail): n.ip for s in plan.cluster.servers for n in s.nics}
    used: dict[str, int] = {}
    transfers = []
    for source, destination, rail, rate in placement.rates_bits_per_second:
        if rate <= 0:
            continue
        port = FIRST_TCP_PORT + used.setdefault(destination, 0)
        used[destination] += 1
        transfers.append(
            Transfer(
                source=source,
                destination=destination,
                rail=rail,
                source_address=address[source, rail],
                destination_address=address[destination, rail],
                tcp_port=port,
                promised_bits_per_second=rate,
            )
        )
    return tuple(transfers)
