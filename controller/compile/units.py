"""Converts payload rates to rates on the wire, which HTB and tc count, and sets queues' bursts.

The conversion from a NIC's line rate to the payload that pairs share is in
optimizer/cluster_plan/payload.py.
"""

from __future__ import annotations

from placewire.optimizer.cluster_plan.payload import ETHERNET_BYTES, MTU_BYTES, payload_fraction

# After a pause, a class may send the bytes of this time at once: enough for the kernel's timers,
# and so little that a message does not pass its queue at line rate. With 5 ms, steps of many small
# messages came out 10 to 15 % shorter than their rates allow.
BURST_SECONDS = 0.001
# The burst of a slow class: one full frame, which it sends whole, and these bytes more, so that a
# late timer costs nothing. It is not several frames: at MTU 9000 and 25 Mbit/s four take 11 ms.
TIMER_SLACK_BYTES = 3 * (MTU_BYTES + ETHERNET_BYTES)


def wire_rate(payload_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> int:
    return round(payload_bits_per_second / payload_fraction(mtu_bytes))


def burst_bits(wire_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> int:
    least = 8 * (mtu_bytes + ETHERNET_BYTES + TIMER_SLACK_BYTES)
    return round(max(least, wire_bits_per_second * BURST_SECONDS))
