"""The sending side of a measurement: all transfers at once, what the receivers got."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from placewire.agent.contract.measurement import Transfer, TransferResult
from placewire.agent.measure.processes import Processes

# Left out of the figure: TCP's slow start. By us, from what the receiver counted second by second:
# iperf3's own --omit divides the bytes after it by the time with it where a queue is slow (3.12).
SETTLE_SECONDS = 1
# How much of a second iperf3's clock may end it early or late.
INTERVAL_SLACK_SECONDS = 0.25
CONNECT_SECONDS = 3.0
# Over the duration, before a client counts as hung.
GRACE_SECONDS = 8.0
# A paced client writes a block, then waits until it is due: small blocks, so that the rate is even,
# and a hair more than promised, because whole blocks are counted.
PACED_BLOCK_SECONDS, PACED_BLOCK_BYTES, PACED_AT = 0.005, (1024, 128 * 1024), 1.02
# What is under way at most. A greedy TCP fills the queue of a slow rate with a second of its data;
# then some send again, slow down, and miss a rate that the network has: one flow of twelve fell 20
# to 50 % short in 8 of 19 measurements of three servers with 16 Mbit/s NICs, and in 2 of 33 with
# short queues. More than the upper bound the kernel may refuse (net.core.wmem_max), and what
# is faster has short queues in time.
WINDOW_SECONDS, WINDOW_BYTES = 0.08, (16 * 1024, 200 * 1024)


async def run_transfers(
    transfers: tuple[Transfer, ...],
    seconds: float,
    start_unix: float,
    processes: Processes | None = None,
) -> tuple[TransferResult, ...]:
    """Waits until start_unix (by this server's clock), then sends all. Never raises for a transfer
    that fails: its result says why.

    processes: where whoever ends this process finds the clients that run.
    """
    await asyncio.sleep(max(0.0, start_unix - time.time()))
    held = processes or Processes()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run_one(item, seconds, held)) for item in transfers]
    return tuple(task.result() for task in tasks)


async def _run_one(transfer: Transfer, seconds: float, processes: Processes) -> TransferResult:
    whole = max(1, round(seconds))
    started_unix = time.time()
    try:
        process = await processes.start(
            "iperf3", "--json", "--client", transfer.destination_address,
            "--bind", transfer.source_address, "--port", str(transfer.tcp_port),
            "--time", str(whole + SETTLE_SECONDS), "--get-server-output",
            "--connect-timeout", str(round(CONNECT_SECONDS * 1000)),
            *window(transfer), *pacing(transfer),
        )  # fmt: skip
    except FileNotFoundError:
        return _failed(transfer, "iperf3 is not installed on this server")
    except OSError as error:
        return _failed(transfer, f"iperf3 cannot be started: {error}")
    try:
        async with asyncio.timeout(whole + SETTLE_SECONDS + CONNECT_SECONDS + GRACE_SECONDS):
            output, complaint = await process.communicate()
        result = parse_result(transfer, output, complaint, whole)
    except TimeoutError:
        result = _failed(transfer, "iperf3 did not end in time")
    finally:
        await processes.end(process)
    return result.model_copy(update={"start_unix": started_unix, "end_unix": time.time()})


def window(transfer: Transfer) -> tuple[str, ...]:
    """iperf3's options that keep a slow queue short."""
    least, most = WINDOW_BYTES
    wanted = round(transfer.promised_bits_per_second / 8 * WINDOW_SECONDS)
    return ("--window", str(max(least, wanted))) if wanted <= most else ()


def pacing(transfer: Transfer) -> tuple[str, ...]:
    """iperf3's options for a transfer that sends what was promised."""
    if not transfer.paced:
        return ()
    rate = transfer.promised_bits_per_second * PACED_AT
    least, most = PACED_BLOCK_BYTES
    block = max(least, min(most, round(rate / 8 * PACED_BLOCK_SECONDS)))
    return ("--bitrate", str(round(rate)), "--length", str(block))


def parse_result(
    transfer: Transfer, output: bytes, complaint: bytes, seconds: float
) -> TransferResult:
    """The rate at which the receiver received for so long after the start had settled. iperf3 exits
    0 on a failed connect: its `error` field counts."""
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError:
        return _failed(transfer, complaint.decode().strip() or "iperf3 printed no JSON")
    if "error" in document:
        return _failed(transfer, str(document["error"]))
    try:
        sent = document["end"]["sum_sent"]
        counted = [
            interval["sum"]
            for interval in document["server_output_json"]["intervals"]
            if interval["sum"]["start"] >= SETTLE_SECONDS - INTERVAL_SLACK_SECONDS
            and interval["sum"]["end"] <= SETTLE_SECONDS + seconds + INTERVAL_SLACK_SECONDS
        ]
        lasted = sum(interval["seconds"] for interval in counted)
        if lasted < seconds - 2 * INTERVAL_SLACK_SECONDS:
            return _failed(transfer, f"iperf3's receiver counted {lasted:.1f} of {seconds:g} s")
        return TransferResult(
            source=transfer.source,
            destination=transfer.destination,
            rail=transfer.rail,
            measured_bits_per_second=8 * sum(part["bytes"] for part in counted) / lasted,
            retransmits=sent.get("retransmits", 0),
            seconds=lasted,
        )
    except (KeyError, TypeError) as error:
        return _failed(transfer, f"iperf3's answer is not as expected: {error!r}")


def _failed(transfer: Transfer, error: str) -> TransferResult:
    return TransferResult(
        source=transfer.source,
        destination=transfer.destination,
        rail=transfer.rail,
        measured_bits_per_second=0.0,
        retransmits=0,
        seconds=0.0,
        error=error,
    )
