"""The agent's metrics: their format, by a strict reader, and their values."""

from __future__ import annotations

from placewire.agent.contract.measurement import InterfaceCounters
from placewire.agent.contract.state import DesiredState, DriftState, LeaseState
from placewire.agent.drivers.queue_counters import QueueCounters
from placewire.agent.metrics.metrics import METRICS, Known, exposition
from tests.agent.states import desired_state, queue
from tests.prometheus import parse

INFO = {"server": "s1", "version": "0.1.0", "datapath": "netdev", "open_vswitch": "3.1.0"}
IDLE = LeaseState(phase="idle", generation=0)
NICS = ("nic0", "of-nobody")


def known(
    desired: DesiredState | None, drift: DriftState | None = None, lease: LeaseState = IDLE
) -> Known:
    queues = desired.queues if desired else ()
    counters = [
        QueueCounters(q.nic, q.queue_id, 10**15 + q.queue_id, 7, 3, 1514)
        for q in (*queues, queue("nic0", 99, 1, 1, "of nobody"))
    ]
    nics = [InterfaceCounters(interface=n, transmit_bytes=2**40, receive_bytes=9) for n in NICS]
    return Known(INFO, lease, desired, drift or DriftState(policy="heal"), counters, nics)


def value(text: str, name: str, **labels: str) -> float:
    found = [
        v
        for (n, held), v in parse(text).items()
        if n == f"placewire_{name}" and held >= labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_every_queue_is_counted_under_its_purpose() -> None:
    lease = LeaseState(
        phase="committed", generation=3, plan_name="test-plan", expires_unix=1_700_000_000.25
    )
    text = exposition(known(desired_state(3), lease=lease))
    pair = {"server": "s1", "plan": "test-plan", "nic": "nic0", "queue": "2", "purpose": "to s2"}
    assert value(text, "queue_transmit_bytes_total", **pair) == 10**15 + 2
    assert value(text, "queue_transmit_packets_total", **pair) == 7
    assert value(text, "queue_dropped_packets_total", **pair) == 3
    assert value(text, "queue_backlog_bytes", **pair) == 1514
    assert value(text, "queue_guaranteed_bytes_per_second", **pair) == 10_000_000 / 8
    assert value(text, "queue_limit_bytes_per_second", nic="nic1", queue="0") == 50_000_000 / 8
    assert value(text, "generation") == 3
    assert value(text, "lease_expiry_timestamp_seconds") == 1_700_000_000.25
    assert value(text, "lease_phase", phase="committed") == 1
    assert value(text, "lease_phase", phase="idle") == 0
    queues = [labels for name, labels in parse(text) if name.endswith("backlog_bytes")]
    assert len(queues) == len(desired_state().queues), "only ours"


def test_where_nothing_is_in_force_there_are_no_queues() -> None:
    names = {name for name, _ in parse(exposition(known(None)))}
    assert not any("queue" in name or "nic_" in name or "expiry" in name for name in names)
    assert {"placewire_agent_info", "placewire_drifts_total"} <= names


def test_drift_is_counted() -> None:
    drift = DriftState(policy="heal", drifts=5, heals=4, since_unix=12.5, notes=("a", "b"))
    text = exposition(known(None, drift))
    assert (value(text, "drifts_total"), value(text, "heals_total")) == (5, 4)
    assert (value(text, "drift_open"), value(text, "drift_since_timestamp_seconds")) == (2, 12.5)


def test_what_a_name_may_hold_breaks_no_line() -> None:
    odd = 'to "s2" \\ and\nmore'
    desired = desired_state(queues=(queue("nic0", 2, 1_000_000, 1_000_000, odd),))
    assert value(exposition(known(desired)), "queue_backlog_bytes", purpose=odd) == 1514


def test_nics_of_the_state_in_force_are_counted_and_no_others() -> None:
    lease = LeaseState(phase="committed", generation=3, plan_name="test-plan")
    text = exposition(known(desired_state(3), lease=lease))
    nic = {"server": "s1", "plan": "test-plan", "nic": "nic0"}
    assert value(text, "nic_transmit_bytes_total", **nic) == 2**40
    assert value(text, "nic_receive_bytes_total", **nic) == 9
    assert value(text, "nic_limit_bytes_per_second", **nic) == 50_000_000 / 8
    assert "of-nobody" not in text


def test_every_metric_is_shown_of_a_server_that_has_all_of_it() -> None:
    lease = LeaseState(phase="committed", generation=3, plan_name="p", expires_unix=1.0)
    drift = DriftState(policy="heal", since_unix=12.5, notes=("a",))
    shown = {name for name, _ in parse(exposition(known(desired_state(3), drift, lease)))}
    assert shown == {metric.name for metric in METRICS}
