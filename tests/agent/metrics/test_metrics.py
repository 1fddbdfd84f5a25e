"""Metrics: their format, by a strict reader, and the answers on the socket."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import DesiredState, DriftState, LeaseState
from placewire.agent.drivers.queue_counters import QueueCounters
from placewire.agent.metrics import metrics_server
from placewire.agent.metrics.metrics import Known, exposition
from placewire.agent.metrics.metrics_server import REQUEST_BYTES, MetricsServer
from placewire.agent.reconcile.effects import EffectError
from tests.agent.metrics.prometheus import parse
from tests.agent.states import desired_state, queue

INFO = {"server": "s1", "version": "0.1.0"}
IDLE = LeaseState(phase="idle", generation=0)


def known(
    desired: DesiredState | None, drift: DriftState | None = None, lease: LeaseState = IDLE
) -> Known:
    queues = desired.queues if desired else ()
    counters = [
        QueueCounters(q.nic, q.queue_id, 10**15 + q.queue_id, 7, 3, 1514)
        for q in (*queues, queue("nic0", 99, 1, 1, "of nobody"))
    ]
    return Known(INFO, lease, desired, drift or DriftState(policy="heal"), counters)


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
    assert not any("queue" in name or "expiry" in name for name in names)
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


# -- the socket ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request here is slow, but the whole test may be held up."""
    monkeypatch.setattr(metrics_server, "REQUEST_SECONDS", 120.0)


def config(directory: Path, tcp_port: int | None = None) -> AgentConfig:
    return AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir=str(directory), metrics_tcp_port=tcp_port,
    )  # fmt: skip


async def ask(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def served(
    directory: Path, request: bytes, collect: Callable[[], str] = lambda: "x 1\n"
) -> tuple[bytes, bytes]:
    """The answer to this request, and the answer to a good request after it."""

    async def run() -> tuple[bytes, bytes]:
        server = MetricsServer(config(directory), collect)
        await server.start()
        try:
            path = directory / "metrics.sock"
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            return await ask(path, request), await ask(path, GET)
        finally:
            await server.close()

    return asyncio.run(run())


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def test_metrics_are_answered_as_http(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "metrics.sock"))  # By an agent that was killed.
    answer, _ = served(tmp_path, GET)
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"text/plain; version=0.0.4" in head
    assert b"Content-Length: 4" in head and body == b"x 1\n"
    assert not (tmp_path / "metrics.sock").exists(), "gone with the agent"


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /state HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\r\n\r\n", b"405"),
        (b"GET /" + b"a" * 2 * REQUEST_BYTES + b"\r\n\r\n", b""),
    ],
)
def test_other_requests_are_refused_and_end_nothing(
    tmp_path: Path, request_bytes: bytes, status: bytes
) -> None:
    answer, after = served(tmp_path, request_bytes)
    assert answer.split(b" ")[1:2] == ([status] if status else [])
    assert after.endswith(b"x 1\n")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    def failing() -> str:
        raise EffectError("the kernel does not answer")

    answer, _ = served(tmp_path, GET, failing)
    assert answer.startswith(b"HTTP/1.1 503") and b"does not answer" in answer


def test_a_loopback_port_is_opened_where_it_is_asked_for(tmp_path: Path) -> None:
    async def run(port: int) -> bytes:
        server = MetricsServer(config(tmp_path, port), lambda: "x 1\n")
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        answer = await reader.read()
        writer.close()
        await server.close()
        return answer

    with socket.socket() as held:  # Else another program could get the port meanwhile.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        assert asyncio.run(run(held.getsockname()[1])).endswith(b"x 1\n")


@pytest.mark.parametrize("place", ["no/m.sock", "file", "file/m.sock", "a" * 120])
def test_a_socket_that_cannot_be_made_ends_no_agent(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()

    async def run() -> None:
        there_not = config(tmp_path).model_copy(update={"metrics_socket": f"{tmp_path}/{place}"})
        server = MetricsServer(there_not, lambda: "")
        await server.start()
        await server.close()

    asyncio.run(run())
    assert (tmp_path / "file").exists(), "which is not ours"
