"""Transfers by iperf3 between a server under test and its peer."""

from __future__ import annotations

import asyncio
import subprocess
import time

from placewire.agent.contract.measurement import Transfer, TransferResult
from placewire.agent.measure.iperf3_clients import run_transfers
from placewire.controller.compile.transfers import FIRST_TCP_PORT
from tests.agent.server_under_test import ServerUnderTest, wait_for

# Payload of what HTB counts: 1448 of 1514 bytes.
PAYLOAD = 0.956


RATES = {2: 10_000_000, 3: 30_000_000}


def transfer(host: int, rail: int = 0, port: int = FIRST_TCP_PORT) -> Transfer:
    return Transfer(
        source="s1", destination=f"s{host}", rail="ab"[rail],
        source_address=f"10.7.{rail}.1", destination_address=f"10.7.{rail}.{host}",
        tcp_port=port + host, promised_bits_per_second=RATES[host] * PAYLOAD,
    )  # fmt: skip


def listen(server: ServerUnderTest, transfers: tuple[Transfer, ...]) -> None:
    """Servers in the peer's namespace, ended with it."""
    for item in transfers:
        server.popen(
            "iperf3", "-s", "-1", "-J", "-B", item.destination_address, "-p", str(item.tcp_port),
            peer=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    for item in transfers:
        port = f":{item.tcp_port} "
        wait_for(lambda port=port: port in server.sh("ss -ltn", peer=True), "iperf3")


def send(transfers: tuple[Transfer, ...], seconds: float) -> tuple[TransferResult, ...]:
    return send_at(transfers, seconds, time.time() + 0.2)


def send_at(
    transfers: tuple[Transfer, ...], seconds: float, start_unix: float
) -> tuple[TransferResult, ...]:
    return asyncio.run(run_transfers(transfers, seconds, start_unix))


def class_bytes(server: ServerUnderTest, queue_id: int) -> int:
    words = server.sh("tc -s class show dev nic0").split("class htb ")
    (mine,) = [text for text in words if text.startswith(f"1:{queue_id + 1:x} ")]
    return int(mine.split("Sent ")[1].split()[0])
