"""Converts a NIC's line rate to the TCP payload that pairs of servers may share.

HTB and tc count Ethernet frames without preamble and checksum. A full frame carries MTU - 52 bytes
of TCP payload (20 IPv4, 20 TCP, 12 timestamps) in MTU + 14 bytes: 1448 in 1514 at MTU 1500, 0.956,
and 8948 in 9014 at MTU 9000, 0.993, which is what iperf3's receiver counts of an HTB rate.
"""

from __future__ import annotations

# The MTU of a NIC for which the plan states none.
MTU_BYTES = 1500
HEADER_BYTES = 52
ETHERNET_BYTES = 14

# These parts of every NIC's line rate are withheld from the pairs. Acknowledgements: one short
# frame (66 bytes) for two full ones received is 2.2 % of the reverse direction; the rest is slack.
# With larger frames it is less, but not for messages that are smaller than such a frame.
ACKNOWLEDGEMENT_FRACTION = 0.03
DEFAULT_FRACTION = 0.01


def payload_fraction(mtu_bytes: int = MTU_BYTES) -> float:
    return (mtu_bytes - HEADER_BYTES) / (mtu_bytes + ETHERNET_BYTES)


def payload_capacity(nic_bits_per_second: float, mtu_bytes: int = MTU_BYTES) -> float:
    """The rate of a NIC that pairs may share, in payload bits per second."""
    reserved = ACKNOWLEDGEMENT_FRACTION + DEFAULT_FRACTION
    return nic_bits_per_second * (1 - reserved) * payload_fraction(mtu_bytes)
