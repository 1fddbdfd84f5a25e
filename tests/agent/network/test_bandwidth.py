"""iperf3 through real queues: each gets its rate, acknowledgements their own class."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import termios
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast
from unittest.mock import create_autospec

import pytest

from placewire.agent.contract.measurement import Transfer, TransferResult
from placewire.agent.contract.messages import Listening, StartServers, StopServers
from placewire.agent.interface_counters import parse_devices
from placewire.agent.keep.keeper import Keeper
from placewire.agent.measure.iperf3_clients import parse_result, run_transfers, window
from placewire.agent.measure.iperf3_servers import Iperf3Servers
from placewire.agent.measure.measuring import Iperf3Measuring
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.service import Service
from tests.agent import keeping
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest, wait_for
from tests.agent.states import desired_state
from tests.agent.transfers import PAYLOAD, RATES, class_bytes, listen, send, transfer
from tests.free_port import free_port
from tests.measured import until


def test_a_measurement_that_a_clock_set_back_puts_off_is_not_made() -> None:
    """An hour later nobody waits for it, and the rail may be another job's."""

    async def story() -> tuple[TransferResult, ...]:
        async with asyncio.timeout(30):
            return await run_transfers((transfer(2), transfer(3)), 1, time.time() + 3600)

    results = asyncio.run(story())
    assert [one.destination for one in results] == ["s2", "s3"]
    assert all("clock was set back: it would begin in 3600 s" in str(r.error) for r in results)


def test_what_a_stranger_has_a_receiver_print_is_not_kept() -> None:
    """Anybody on the rail may dial it, and iperf3 prints a text of its peer's at any length."""
    most = 64 * 2**20
    body = json.dumps({
        "tcp": True, "omit": 0, "time": 1, "num": 0, "blockcount": 0, "parallel": 1, "len": 131072,
        "pacing_timer": 1000, "client_version": "3.12", "extra_data": "A" * most,
    }).encode()  # fmt: skip
    results = json.dumps({
        "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0,
        "sender_has_retransmits": 0, "streams": [{
            "id": 1, "bytes": 0, "retransmits": 0, "jitter": 0, "errors": 0, "packets": 0,
            "start_time": 0, "end_time": 1,
        }],
    }).encode()  # fmt: skip
    cookie, place = b"a" * 36 + b"\0", ("127.0.0.1", free_port())

    def dials() -> None:
        """As iperf3's client does, up to its end."""
        with socket.create_connection(place, 60) as one, one.makefile("rb") as answers:
            one.sendall(cookie)
            answers.read(1)
            one.sendall(struct.pack("!I", len(body)))
            one.sendall(body)
            answers.read(1)
            with socket.create_connection(place, 60) as data:
                data.sendall(cookie + b"x" * 131072)
                answers.read(2)
                one.sendall(b"\4")  # It is at its end.
                answers.read(1)
                one.sendall(struct.pack("!I", len(results)) + results)
                answers.read(struct.unpack("!I", answers.read(4))[0])
                answers.read(1)
                one.sendall(b"\x10")  # Good-bye.

    async def story() -> int:
        address, tcp_port = place
        aimed = {"destination_address": address, "tcp_port": tcp_port}
        servers = Iperf3Servers()
        await servers.start((transfer(2).model_copy(update=aimed),), 60)
        tracemalloc.start()
        try:
            await asyncio.to_thread(dials)
            async with asyncio.timeout(60):
                while len(asyncio.all_tasks()) > 2:  # This one, and the one that ends it in time.
                    await asyncio.sleep(0.05)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await servers.stop()

    assert asyncio.run(story()) < most / 8


@pytest.mark.parametrize(
    "bytes_told", [-(10**30), 10**400, float("nan"), "1"], ids=["less", "more", "nan", "text"]
)
def test_a_rate_that_is_none_is_no_measurement(bytes_told: object) -> None:
    """The receiver's end may be another's."""
    interval = {"sum": {"start": 1, "end": 2, "seconds": 1, "bytes": bytes_told}}
    document = {"end": {"sum_sent": {}}, "server_output_json": {"intervals": [interval]}}
    result = parse_result(transfer(2), json.dumps(document).encode(), b"", 1)
    assert result.error and result.measured_bits_per_second == 0
    nested = b"[" * 100_000
    assert parse_result(transfer(2), nested, b"\xff", 1).error


@pytest.mark.network
def test_a_paced_transfer_sends_what_was_promised(server: ServerUnderTest) -> None:
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    slow = transfer(3).model_copy(update={"promised_bits_per_second": 5e6, "paced": True})

    def measure() -> float:
        listen(server, (slow,))
        (result,) = server.inside(send, (slow,), 2)
        return float(result.measured_bits_per_second)

    wanted = pytest.approx(5e6, rel=0.1)
    assert until(lambda rate: rate == wanted, measure) == wanted, "of 28 that it could"


@pytest.mark.network
@pytest.mark.slow
def test_each_queue_gives_its_rate_at_the_same_time(server: ServerUnderTest) -> None:
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    both = (transfer(2), transfer(3))
    wanted = {host: pytest.approx(rate * PAYLOAD, rel=0.1) for host, rate in RATES.items()}

    def rates(results: dict[str, TransferResult]) -> dict[int, float]:
        return {host: results[f"s{host}"].measured_bits_per_second for host in RATES}

    def measure() -> dict[str, TransferResult]:
        listen(server, both)
        return {r.destination: r for r in server.inside(send, both, 3)}

    results = until(lambda found: rates(found) == wanted, measure)
    assert rates(results) == wanted
    for host, rate in RATES.items():
        result = results[f"s{host}"]
        assert result.error is None
        assert result.end_unix - result.start_unix >= 4, "three seconds, and one left out"
        assert class_bytes(server, host) > rate * 2 / 8, "went through its class"


@pytest.mark.network
@pytest.mark.slow
def test_acknowledgements_go_through_their_own_class(server: ServerUnderTest) -> None:
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.popen("iperf3", "-s", "-1", "-B", "10.7.0.1", "-p", "42009", stdout=subprocess.DEVNULL)
    wait_for(lambda: ":42009 " in server.sh("ss -ltn"), "iperf3")
    data = class_bytes(server, 2)
    server.sh("iperf3 -c 10.7.0.1 -B 10.7.0.2 -p 42009 -n 5M -b 40M", peer=True)
    acknowledged = class_bytes(server, 1)
    # With the kernel's offloads, one acknowledgement covers up to 64 kB.
    assert acknowledged > (30_000 if DATAPATH == "netdev" else 3_000), "of 5 MB received"
    assert class_bytes(server, 2) - data < acknowledged / 5


SINK = """
import socket
with socket.create_server(("10.7.0.2", 42011)) as server:
    while True:
        ours, _ = server.accept()
        while ours.recv(1 << 20):
            pass
"""


@pytest.mark.network
def test_the_short_end_of_data_does_not_overtake_what_was_sent_before(
    server: ServerUnderTest,
) -> None:
    """gloo sends a short header before each part, which behind a queue looked like a loss."""
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    server.popen(sys.executable, "-c", SINK, peer=True)
    wait_for(lambda: ":42011 " in server.sh("ss -ltn", peer=True), "the sink")

    def measure() -> tuple[int, int]:
        """Segments that were sent again, which also a held-up switch causes; bytes of what is short
        and goes before all else."""
        before = class_bytes(server, 1)
        retransmitted = server.inside(_send_in_pieces)
        return retransmitted, class_bytes(server, 1) - before

    retransmitted, overtaking = until(lambda found: found[0] <= 2 and found[1] < 2000, measure)
    assert retransmitted <= 2, "of about 400 segments"
    assert overtaking < 2000


def _send_in_pieces() -> int:
    """Sends headers of 48 bytes and parts of 10 kB; returns how many segments were sent again."""
    with socket.create_connection(("10.7.0.2", 42011)) as ours:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(15):
            for _ in range(3):
                ours.sendall(bytes(48))
                ours.sendall(bytes(10_000))
            while struct.unpack("i", fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(4)))[0]:
                time.sleep(0.005)
        info = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return int(struct.unpack_from("I", info, 100)[0])  # tcpi_total_retrans


@pytest.mark.network
def test_servers_listen_are_used_and_end(server: ServerUnderTest) -> None:
    both = (transfer(2), transfer(3))
    results = until(
        lambda found: found["measured"] > 1e6,
        lambda: server.inside(_servers_and_clients, both, peer=True),
    )
    assert results["ports"] == tuple(one.tcp_port for one in both)
    assert results["measured"] > 1e6
    assert results["left"] == ""


def _servers_and_clients(transfers: tuple[Transfer, ...]) -> dict[str, object]:
    async def story() -> dict[str, object]:
        servers = Iperf3Servers()
        ports = await servers.start(transfers, seconds=30)
        local = transfers[0].model_copy(update={"source_address": "10.7.0.3"})
        (result,) = await run_transfers((local,), 1, 0)
        await servers.stop()
        left = Path("/proc/net/tcp").read_text()
        listening = [
            line for line in left.splitlines() if f":{transfers[1].tcp_port:04X} 00000000" in line
        ]
        return {
            "ports": ports,
            "measured": result.measured_bits_per_second,
            "left": "".join(listening),
        }

    return asyncio.run(story())


def test_the_answer_to_start_servers_bears_the_agents_clock() -> None:
    before = time.time()
    for request in (StartServers(transfers=(), seconds=1), StopServers()):
        answer = asyncio.run(_service().answer(request.model_dump(mode="json")))
        assert isinstance(answer, Listening)
        assert before <= answer.clock_unix <= time.time()


def _service() -> Service:
    """A service whose keeper is never asked."""
    return Service("s1", cast(Keeper, create_autospec(Keeper)), Iperf3Measuring())


@pytest.mark.network
def test_servers_end_by_themselves_and_a_taken_port_is_said(server: ServerUnderTest) -> None:
    said, left = server.inside(_taken_port, transfer(2), peer=True)
    assert f"10.7.0.2 port {transfer(2).tcp_port}" in said and "in use" in said
    assert not left


def _taken_port(item: Transfer) -> tuple[str, bool]:
    async def story() -> tuple[str, bool]:
        first, second = Iperf3Servers(), Iperf3Servers()
        await first.start((item,), seconds=60)
        said = ""
        try:
            await second.start((item,), seconds=5)
        except EffectError as error:
            said = str(error)
        await first.start((item,), seconds=0.1)
        await _until_true(lambda: not listening())
        return said, listening()

    def listening() -> bool:
        return f":{item.tcp_port:04X} 00000000" in Path("/proc/net/tcp").read_text()

    return asyncio.run(story())


@pytest.mark.network
def test_one_server_that_fails_leaves_no_other(server: ServerUnderTest) -> None:
    said, left, tasks = server.inside(_one_port_taken, peer=True)
    assert f"10.7.0.3 port {transfer(3).tcp_port}" in said and "in use" in said
    assert left == [] and tasks == 1, "the story itself"


async def _until_true(condition: Callable[[], bool]) -> None:
    """Waits until it is true; for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def _children() -> list[str]:
    """The commands of this process's children, ended ones that nobody waited for included."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):  # It was waited for just now.
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def _one_port_taken() -> tuple[str, list[str], int]:
    async def story() -> tuple[str, list[str], int]:
        servers = Iperf3Servers()
        said = ""
        with socket.create_server(("10.7.0.3", transfer(3).tcp_port)):
            for _ in range(3):
                try:
                    await servers.start((transfer(2), transfer(3)), seconds=30)
                except EffectError as error:
                    said = str(error)
        return said, _children(), len(asyncio.all_tasks())

    return asyncio.run(story())


@pytest.mark.network
def test_a_start_that_is_given_up_leaves_no_server(server: ServerUnderTest) -> None:
    given_up = 0
    for milliseconds in (0, 1, 2, 3):
        cancelled, left = server.inside(_give_up_starting, milliseconds / 1000, peer=True)
        given_up += cancelled
        assert left == []
    assert given_up


def _give_up_starting(after_seconds: float) -> tuple[bool, list[str]]:
    async def story() -> tuple[bool, list[str]]:
        servers = Iperf3Servers()
        starting = asyncio.create_task(servers.start((transfer(2), transfer(3)), seconds=30))
        await asyncio.sleep(after_seconds)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if not starting.cancelled():
            await servers.stop()
        return starting.cancelled(), _children()

    return asyncio.run(story())


@pytest.mark.network
def test_what_runs_when_the_daemon_ends_is_ended(server: ServerUnderTest) -> None:
    during, after = server.inside(_close_in_the_middle, peer=True)
    assert during == ["iperf3"] * 2 and after == []


def _close_in_the_middle() -> tuple[list[str], list[str]]:
    async def story() -> tuple[list[str], list[str]]:
        measuring = Iperf3Measuring()
        item = transfer(2).model_copy(update={"source_address": "10.7.0.3"})
        await measuring.start_servers((item,), 30)
        sending = asyncio.create_task(measuring.run_transfers((item,), 20, 0))
        await _until_true(lambda: _children() == ["iperf3"] * 2)
        during = _children()
        await measuring.close()
        (result,) = await sending
        assert result.error is not None
        # Those that could not be ended in time were killed, and are reaped a moment later.
        await _until_true(lambda: not _children())
        return during, _children()

    return asyncio.run(story())


@pytest.mark.network
def test_a_failed_connect_is_a_result_with_its_reason(server: ServerUnderTest) -> None:
    (result,) = server.inside(send, (transfer(2),), 1)
    assert result.measured_bits_per_second == 0 and "refused" in (result.error or "")
    assert time.time() - 60 < result.start_unix < result.end_unix <= time.time()


def test_what_iperf3_says_is_taken_apart() -> None:
    """The first second is left out, and what came after the end too."""
    received = [(0, 1, 9), (1, 2.1, 110), (2.1, 3, 90), (3, 3.4, 1000)]
    result = parse_result(transfer(2), _answer(received), b"", 2)
    assert result.measured_bits_per_second == pytest.approx(800)
    assert (result.retransmits, result.seconds) == (4, 2)
    short = parse_result(transfer(2), _answer(received[:2]), b"", 2)
    assert "counted 1.1 of 2 s" in (short.error or "")
    assert parse_result(transfer(2), b'{"error": "no route"}', b"", 2).error == "no route"
    assert "sum_sent" in (parse_result(transfer(2), b'{"end": {}}', b"", 2).error or "")
    assert parse_result(transfer(2), b"", b"unknown option", 2).error == "unknown option"


def _answer(received: Sequence[tuple[float, float, int]]) -> bytes:
    sums = [{"start": a, "end": b, "seconds": b - a, "bytes": n} for a, b, n in received]
    intervals = {"intervals": [{"sum": each} for each in sums]}
    document = {"end": {"sum_sent": {"retransmits": 4}}, "server_output_json": intervals}
    return json.dumps(document).encode()


def test_only_a_slow_queue_is_kept_short() -> None:
    rates = {5e6: ("--window", "50000"), 1e6: ("--window", "16384"), 10e9: ()}
    for rate, options in rates.items():
        item = transfer(2).model_copy(update={"promised_bits_per_second": rate})
        assert window(item) == options


def test_counters_are_read_from_their_columns() -> None:
    text = "h\nh\n  nic0: 111 2 3 4 5 6 7 8 222 10 11 12 13 14 15 16\n    lo:1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n"  # noqa: E501
    found = parse_devices(text)
    assert (found["nic0"].receive_bytes, found["nic0"].transmit_bytes) == (111, 222)
    assert found["lo"].transmit_bytes == 1
