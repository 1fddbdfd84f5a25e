"""Makes Prometheus' text (version 0.0.4) from what the agent knows and the kernel counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

from placewire.agent.contract.entries import Queue
from placewire.agent.contract.state import DesiredState, DriftState, LeasePhase, LeaseState
from placewire.agent.drivers.queue_counters import QueueCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Labels, float]]


class Known(NamedTuple):
    """What the metrics are made of, as it is when somebody asks for them."""

    info: Labels
    lease: LeaseState
    desired: DesiredState | None
    drift: DriftState
    counters: Sequence[QueueCounters]


def exposition(known: Known) -> str:
    families = [*_of_the_lease(known), *_of_drift(known.drift), *_of_queues(known)]
    return "".join(_text(family) for family in families if family.samples)


def _of_the_lease(known: Known) -> list[Family]:
    lease = known.lease
    phases = [({"phase": p}, float(p == lease.phase)) for p in get_args(LeasePhase)]
    expires: list[tuple[Labels, float]] = (
        [] if lease.expires_unix is None else [({}, lease.expires_unix)]
    )
    return [
        Family(
            "placewire_agent_info", "gauge", "The agent and its server; always 1.",
            [(known.info, 1)],
        ),
        Family("placewire_lease_phase", "gauge", "1 for the phase that the lease is in.", phases),
        Family(
            "placewire_lease_expiry_timestamp_seconds", "gauge",
            "When the state in force ends unless renewed; absent where it is kept.", expires,
        ),
        Family(
            "placewire_generation", "gauge", "Generation of the state in force; 0 for none.",
            [({}, lease.generation)],
        ),
    ]  # fmt: skip


def _of_drift(drift: DriftState) -> list[Family]:
    since: list[tuple[Labels, float]] = [] if drift.since_unix is None else [({}, drift.since_unix)]
    return [
        Family(
            "placewire_drifts_total", "counter",
            "How often the state in force was found changed by others.", [({}, drift.drifts)],
        ),
        Family(
            "placewire_heals_total", "counter", "How often such changes were put back.",
            [({}, drift.heals)],
        ),
        Family(
            "placewire_drift_open", "gauge",
            "How many things are not as decided and not put back.", [({}, len(drift.notes))],
        ),
        Family(
            "placewire_drift_since_timestamp_seconds", "gauge",
            "When what differs now was first seen; absent where nothing differs.", since,
        ),
    ]  # fmt: skip


def _of_queues(known: Known) -> list[Family]:
    queues = {(q.nic, q.queue_id): q for q in (known.desired.queues if known.desired else ())}
    counted = [(queues[c[:2]], c) for c in known.counters if c[:2] in queues]

    def family(name: str, kind: str, help_text: str, values: Iterable[float]) -> Family:
        labels = [_queue_labels(known, queue) for queue, _ in counted]
        return Family(
            f"placewire_queue_{name}", kind, help_text, [*zip(labels, values, strict=True)]
        )

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


def _text(family: Family) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{_labels(labels)} {value:.17g}" for labels, value in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
