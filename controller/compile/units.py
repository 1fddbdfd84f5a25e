"""Payload rates as rates on the wire, which is what HTB and tc count, and how much may burst.

The other way, from a NIC's line rate to what pairs may share, is optimizer/cluster_plan/payload.py.
"""

from __future__ import annotations

from placewire.optimizer.cluster_plan.payload import ETHERNET_BYTES, MTU_BYTES, payload_fraction

# A class may send this much time's worth of its rate at once, after a pause too: enough for the
# kernel's timers, and so little that a message does not pass its queue at line rate. With 5 ms
# steps of many small messages came out 10 to 15 % shorter than their rates allow.
BURST_SECONDS = 0.001
# However slow: one full frame, which a class below its cap sends whole, and these bytes more, in
# which a late timer loses nothing. Not several frames: at MTU 9000 four are 11 ms at 25 Mbit/s.
TIMER_SLACK_BYTES = 3 * (MTU_BYTES + ETHERNET_BYTES)


def wire_rate(payload_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> int:
    return round(payload_bits_per_second / payload_fraction(mtu_bytes))


def burst_bits(wire_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> int:
    least = 8 * (mtu_bytes + ETHERNET_BYTES + TIMER_SLACK_BYTES)
    return round(max(least, wire_bits_per_second * BURST_SECONDS))
