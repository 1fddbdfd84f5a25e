"""Makes Prometheus' text (version 0.0.4) from what the agent knows and the kernel counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

from placewire.agent.contract.entries import Queue
from placewire.agent.contract.state import DesiredState, DriftState, LeasePhase, LeaseState
from placewire.agent.drivers.queue_counters import QueueCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Known(NamedTuple):
    """The values that the metrics show, read when somebody asks for the metrics."""

    info: Labels
    lease: LeaseState
    desired: DesiredState | None
    drift: DriftState
    counters: Sequence[QueueCounters]


def exposition(known: Known) -> str:
    lease, drift = known.lease, known.drift
    phases = [({"phase": p}, float(p == lease.phase)) for p in get_args(LeasePhase)]
    return "".join((
        _family("agent_info", "gauge", "The agent and its server; always 1.", [(known.info, 1)]),
        _family("lease_phase", "gauge", "1 for the phase that the lease is in.", phases),
        _value("lease_expiry_timestamp_seconds", "gauge",
               "When the state in force ends unless renewed; absent where it is kept.",
               lease.expires_unix),
        _value("generation", "gauge", "Generation of the state in force; 0 for none.",
               lease.generation),
        _value("debts", "gauge",
               "To how many NICs something is owed that were away when it was to come back.",
               len(lease.owed)),
        _value("drifts_total", "counter",
               "How often the state in force was found changed by others.", drift.drifts),
        _value("heals_total", "counter", "How often such changes were put back.", drift.heals),
        _value("drift_open", "gauge", "How many things are not as decided and not put back.",
               len(drift.notes)),
        _value("drift_since_timestamp_seconds", "gauge",
               "When what differs now was first seen; absent where nothing differs.",
               drift.since_unix),
        *_of_queues(known),
    ))  # fmt: skip


def _of_queues(known: Known) -> list[str]:
    queues = {(q.nic, q.queue_id): q for q in (known.desired.queues if known.desired else ())}
    counted = [(queues[c[:2]], c) for c in known.counters if c[:2] in queues]
    labels = [_queue_labels(known, queue) for queue, _ in counted]

    def family(name: str, kind: str, help_text: str, values: Iterable[float]) -> str:
        return _family(f"queue_{name}", kind, help_text, [*zip(labels, values, strict=True)])

    return [
        family("transmit_bytes_total", "counter", "Bytes sent, Ethernet headers included.",
               (c.sent_bytes for _, c in counted)),
        family("transmit_packets_total", "counter", "Packets sent.",
               (c.sent_packets for _, c in counted)),
        family("dropped_packets_total", "counter", "Packets for which the queue had no room.",
               (c.dropped_packets for _, c in counted)),
        family("backlog_bytes", "gauge", "Bytes that wait in the queue now.",
               (c.backlog_bytes for _, c in counted)),
        family("guaranteed_bytes_per_second", "gauge", "The rate that is promised, on the wire.",
               (q.min_bits_per_second / 8 for q, _ in counted)),
        family("limit_bytes_per_second", "gauge", "The rate that is never exceeded, on the wire.",
               (q.max_bits_per_second / 8 for q, _ in counted)),
    ]  # fmt: skip


def _queue_labels(known: Known, queue: Queue) -> Labels:
    return {
        "server": known.info["server"],
        "plan": known.lease.plan_name or "",
        "nic": queue.nic,
        "queue": str(queue.queue_id),
        "purpose": queue.purpose,
    }


def _value(name: str, kind: str, help_text: str, value: float | None) -> str:
    return _family(name, kind, help_text, [] if value is None else [({}, value)])


def _family(name: str, kind: str, help_text: str, samples: Sequence[tuple[Labels, float]]) -> str:
    """The text of one metric; "" where it has no sample."""
    if not samples:
        return ""
    name = f"placewire_{name}"
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value:.17g}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
