"""Bandwidth measurement: what the controller asks of agents and what they answer.

Rates are payload bits per second: what iperf3's receiver counts.
"""

from __future__ import annotations

from placewire.agent.contract.numbers import BitsPerSecond, TcpPort
from placewire.frozen import Frozen


class Transfer(Frozen):
    """One iperf3 stream: from this source address to a server's address on one rail.

    paced: it sends what was promised, not as much as it can. So where it shares a receiver with
    another: what each of two greedy streams gets there is TCP's doing and not the network's.
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
    """error is set where iperf3 failed; the rates are then 0.

    start_unix, end_unix: from the start of the client to its end, slow start included, by the
    sending agent's clock; 0 where none was started.
    """

    source: str
    destination: str
    rail: str
    measured_bits_per_second: float
    retransmits: int
    seconds: float
    error: str | None = None
    start_unix: float = 0.0
    end_unix: float = 0.0


class LinkMeasurement(Frozen):
    """Promised against measured for one (source, destination, rail); at_most is what the transfer
    may get beyond its promise, where its queue may borrow."""

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
    transmit_bytes: int
    receive_bytes: int
