"""Types of a bandwidth measurement: what the controller asks of agents, and what they answer.

Rates are payload bits per second: what iperf3's receiver counts.
"""

from __future__ import annotations

from placewire.agent.contract.numbers import BitsPerSecond, Count, Integer, TcpPort, ToldSeconds
from placewire.frozen import Frozen


class Transfer(Frozen):
    """One iperf3 stream from a source address to a server's address on one rail.

    paced: whether it sends at the promised rate instead of as fast as it can. Streams that share a
    receiver, or an uplink that they could overload, are paced, because TCP and not the network
    would decide what each greedy one gets.
    """

    source: str
    destination: str
    rail: str
    source_address: str
    destination_address: str
    tcp_port: TcpPort
    promised_bits_per_second: BitsPerSecond
    paced: bool = False


class TransferResult(Frozen):
    """error: set where iperf3 failed; the rate is then 0.

    start_unix, end_unix: when the client started and ended, slow start included, by the sending
    agent's clock; 0 where no client was started.
    """

    source: str
    destination: str
    rail: str
    measured_bits_per_second: BitsPerSecond
    retransmits: Integer
    seconds: ToldSeconds
    error: str | None = None
    start_unix: ToldSeconds = 0.0
    end_unix: ToldSeconds = 0.0


class LinkMeasurement(Frozen):
    """Promised and measured rate of one (source, destination, rail). at_most_bits_per_second: how
    much the transfer may get where its queue borrows beyond its promise."""

    source: str
    destination: str
    rail: str
    nic: str
    queue_id: int | None
    promised_bits_per_second: float
    at_most_bits_per_second: float
    wire_bits_per_second: float
    measured_bits_per_second: float
    within_tolerance: bool
    error: str | None = None


class Neighbour(Frozen):
    """An address (a.b.c.d) that answered on an interface's wire."""

    interface: str
    address: str


class InterfaceCounters(Frozen):
    interface: str
    transmit_bytes: Count
    receive_bytes: Count
