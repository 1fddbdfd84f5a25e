"""Makes the agent's metrics from what it knows and what the kernel counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from placewire.agent.contract.entries import Queue
from placewire.agent.contract.measurement import InterfaceCounters
from placewire.agent.contract.state import DesiredState, DriftState, LeasePhase, LeaseState
from placewire.agent.drivers.queue_counters import QueueCounters
from placewire.exposition import Metric

_SERVER = ("server",)
_NIC = ("server", "plan", "nic")
_QUEUE = (*_NIC, "queue", "purpose")

INFO = Metric(
    "placewire_agent_info", "gauge", ("server", "version", "datapath", "open_vswitch"),
    "The agent and its server; always 1.",
)  # fmt: skip
PHASE = Metric(
    "placewire_lease_phase", "gauge", ("server", "phase"),
    "1 for the phase that the lease is in, 0 for each other one.",
)  # fmt: skip
EXPIRY = Metric(
    "placewire_lease_expiry_timestamp_seconds", "gauge", _SERVER,
    "When the state in force ends unless it is renewed; absent where it is kept.",
)  # fmt: skip
GENERATION = Metric(
    "placewire_generation", "gauge", _SERVER, "The generation of the state in force; 0 for none."
)
DEBTS = Metric(
    "placewire_debts", "gauge", _SERVER,
    "To how many NICs something is owed that were away when it was to come back.",
)  # fmt: skip
DRIFTS = Metric(
    "placewire_drifts_total", "counter", _SERVER,
    "How often, since the agent started, the state in force was found changed by others.",
)  # fmt: skip
HEALS = Metric(
    "placewire_heals_total", "counter", _SERVER,
    "How often, since the agent started, it put such changes back.",
)  # fmt: skip
DRIFT_OPEN = Metric(
    "placewire_drift_open", "gauge", _SERVER,
    "How many things are not as decided and not put back.",
)  # fmt: skip
DRIFT_SINCE = Metric(
    "placewire_drift_since_timestamp_seconds", "gauge", _SERVER,
    "When what differs now was first seen; absent where nothing differs.",
)  # fmt: skip
NIC_SENT = Metric(
    "placewire_nic_transmit_bytes_total", "counter", _NIC,
    "Bytes that the NIC has sent, headers included, whoever sent them.",
)  # fmt: skip
NIC_RECEIVED = Metric(
    "placewire_nic_receive_bytes_total", "counter", _NIC,
    "Bytes that the NIC has received, headers included.",
)  # fmt: skip
NIC_RATE = Metric(
    "placewire_nic_limit_bytes_per_second", "gauge", _NIC,
    "The rate of all queues of the NIC together, on the wire, as the state in force has it.",
)  # fmt: skip
QUEUE_SENT = Metric(
    "placewire_queue_transmit_bytes_total", "counter", _QUEUE,
    "Bytes sent, Ethernet headers included.",
)  # fmt: skip
QUEUE_PACKETS = Metric("placewire_queue_transmit_packets_total", "counter", _QUEUE, "Packets sent.")
QUEUE_DROPPED = Metric(
    "placewire_queue_dropped_packets_total", "counter", _QUEUE,
    "Packets for which the queue had no room.",
)  # fmt: skip
QUEUE_BACKLOG = Metric(
    "placewire_queue_backlog_bytes", "gauge", _QUEUE, "Bytes that wait in the queue now."
)
QUEUE_GUARANTEED = Metric(
    "placewire_queue_guaranteed_bytes_per_second", "gauge", _QUEUE,
    "The rate that the queue is promised, on the wire.",
)  # fmt: skip
QUEUE_LIMIT = Metric(
    "placewire_queue_limit_bytes_per_second", "gauge", _QUEUE,
    "The rate that the queue never exceeds, on the wire.",
)  # fmt: skip

METRICS = (
    INFO, PHASE, EXPIRY, GENERATION, DEBTS, DRIFTS, HEALS, DRIFT_OPEN, DRIFT_SINCE,
    NIC_SENT, NIC_RECEIVED, NIC_RATE,
    QUEUE_SENT, QUEUE_PACKETS, QUEUE_DROPPED, QUEUE_BACKLOG, QUEUE_GUARANTEED, QUEUE_LIMIT,
)  # fmt: skip


class Known(NamedTuple):
    """The values that the metrics show, read when somebody asks for the metrics. info: by the
    labels of INFO. queues, nics: of those of the state in force that exist."""

    info: Mapping[str, str]
    lease: LeaseState
    desired: DesiredState | None
    drift: DriftState
    queues: Sequence[QueueCounters]
    nics: Sequence[InterfaceCounters]


def exposition(known: Known) -> str:
    lease, drift = known.lease, known.drift
    server = (known.info["server"],)
    phases = [((*server, phase), float(phase == lease.phase)) for phase in get_args(LeasePhase)]
    return "".join((
        INFO.of([known.info[label] for label in INFO.labels], 1),
        PHASE.text(phases),
        EXPIRY.of(server, lease.expires_unix),
        GENERATION.of(server, lease.generation),
        DEBTS.of(server, len(lease.owed)),
        DRIFTS.of(server, drift.drifts),
        HEALS.of(server, drift.heals),
        DRIFT_OPEN.of(server, len(drift.notes)),
        DRIFT_SINCE.of(server, drift.since_unix),
        *_of_nics(known),
        *_of_queues(known),
    ))  # fmt: skip


def _of_nics(known: Known) -> list[str]:
    shapers = known.desired.shapers if known.desired else ()
    ours = {shaper.nic for shaper in shapers}
    counted = [(_nic_labels(known, c.interface), c) for c in known.nics if c.interface in ours]
    limits = [(_nic_labels(known, one.nic), one.max_bits_per_second / 8) for one in shapers]
    return [
        NIC_SENT.text((labels, c.transmit_bytes) for labels, c in counted),
        NIC_RECEIVED.text((labels, c.receive_bytes) for labels, c in counted),
        NIC_RATE.text(limits),
    ]


def _of_queues(known: Known) -> list[str]:
    queues = {(q.nic, q.queue_id): q for q in (known.desired.queues if known.desired else ())}
    counted = [(queues[c[:2]], c) for c in known.queues if c[:2] in queues]
    found = [(_queue_labels(known, queue), queue, c) for queue, c in counted]
    return [
        QUEUE_SENT.text((labels, c.sent_bytes) for labels, _, c in found),
        QUEUE_PACKETS.text((labels, c.sent_packets) for labels, _, c in found),
        QUEUE_DROPPED.text((labels, c.dropped_packets) for labels, _, c in found),
        QUEUE_BACKLOG.text((labels, c.backlog_bytes) for labels, _, c in found),
        QUEUE_GUARANTEED.text((labels, q.min_bits_per_second / 8) for labels, q, _ in found),
        QUEUE_LIMIT.text((labels, q.max_bits_per_second / 8) for labels, q, _ in found),
    ]


def _nic_labels(known: Known, nic: str) -> tuple[str, str, str]:
    return known.info["server"], known.lease.plan_name or "", nic


def _queue_labels(known: Known, queue: Queue) -> tuple[str, ...]:
    return *_nic_labels(known, queue.nic), str(queue.queue_id), queue.purpose
