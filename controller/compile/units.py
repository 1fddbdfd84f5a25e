"""The one place where rates change their meaning: payload of a transfer to bits on the wire.

HTB and tc count Ethernet frames without preamble and checksum. A full frame carries MTU - 52 bytes
of TCP payload (20 IPv4, 20 TCP, 12 timestamps) in MTU + 14 bytes, 1448 in 1514 at MTU 1500: 0.956,
which is what iperf3's receiver counts of an HTB rate.
"""

from __future__ import annotations

MTU_BYTES = 1500
HEADER_BYTES = 52
ETHERNET_BYTES = 14

# Of every NIC's wire rate these parts are kept back from the pairs. Acknowledgements: one short
# frame (66 bytes) for two full ones received is 2.2 % of the reverse direction; the rest is slack.
ACKNOWLEDGEMENT_FRACTION = 0.03
DEFAULT_FRACTION = 0.01

# A class may send this much time's worth of its rate at once: enough for a timer tick and a few
# frames, short enough that a switch's buffer does not see it.
BURST_SECONDS = 0.005
MINIMUM_BURST_FRAMES = 8


def payload_fraction(mtu_bytes: int = MTU_BYTES) -> float:
    return (mtu_bytes - HEADER_BYTES) / (mtu_bytes + ETHERNET_BYTES)


def wire_rate(payload_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> int:
    return round(payload_bits_per_second / payload_fraction(mtu_bytes))


def payload_capacity(nic_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> float:
    """What pairs may share of a NIC, in payload bits per second."""
    reserved = ACKNOWLEDGEMENT_FRACTION + DEFAULT_FRACTION
    return nic_bits_per_second * (1 - reserved) * payload_fraction(mtu_bytes)


def burst_bits(wire_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> int:
    frames = MINIMUM_BURST_FRAMES * 8 * (mtu_bytes + ETHERNET_BYTES)
    return round(max(frames, wire_bits_per_second * BURST_SECONDS))
